"""Turns a reader's output into a `Trace`: completed, linked, nested, cut into steps. The same for every format."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import polars as pl

from whystall.trace.collectives import collective_table
from whystall.trace.columns import distinct, matching
from whystall.trace.link import HOST_TABLES, link_device, link_host, link_series, nest_host, rows_of
from whystall.trace.metadata import sound_text
from whystall.trace.model import Quarantine, Source, Trace
from whystall.trace.readers.reader import RawTrace
from whystall.trace.repeats import repeated_launches
from whystall.trace.schema import DEVICE_KINDS, OPTIONAL, REQUIRED, WITHOUT_THREAD
from whystall.trace.steps import Work, find_steps, step_of_launch
from whystall.vocabulary.autograd import ENGINE

_THREADS: Final = {"pid": pl.String, "tid": pl.String, "name": pl.String}
_EXTRA: Final = {"table": pl.Categorical, "row": pl.Int64, "key": pl.Categorical, "value": pl.Categorical}
_NUMBERS: Final[dict[str, Any]] = {"integer": pl.Int64, "float": pl.Float64}
_REQUIRED_TYPES: Final[dict[str, Any]] = {
    "ts_ns": pl.Int64,
    "duration_ns": pl.Int64,
    "thread": pl.Int32,
    "phase": pl.UInt8,
    "value": pl.Float64,
}
MOST_COUNTERS: Final = 1 << 12
_NO_THREAD: Final = -1
_LARGEST_VALUE: Final = 1e24  # limits the digits shown
_NO_PLACE: Final = -1


class ReaderError(Exception):
    """A reader returned unusable tables: the message names them and the reason."""


def assemble(raw: RawTrace, *, name: str, file_bytes: int) -> Trace:
    """The trace of a reader's tables; ``raw.tables`` is used up on the way.

    Raises `ReaderError` where a table lacks a column that every event must have.
    """
    tables = raw.tables
    quarantined = list(raw.quarantined)
    if unknown := set(tables) - set(REQUIRED):
        raise ReaderError(f"there is no table {min(unknown)!r}")
    for table in REQUIRED:
        tables[table] = _completed(table, tables.get(table), quarantined)
    _check_references(tables, len(raw.threads))
    nesting = nest_host(tables)
    link_host(tables, nesting)
    link_device(tables)
    marked = raw.steps
    if marked is None:
        repeats = functools.partial(repeated_launches, tables)
        steps, steps_from = find_steps(tables["annotations"], _work(tables), tables["python_functions"], repeats)
    else:
        steps, steps_from = marked.table, marked.marked_by
    if raw.metadata.whole_steps is not None and raw.metadata.whole_steps > 0:
        steps = steps.head(raw.metadata.whole_steps)  # work that ran when the job ended is no step
    launched = marked is None or not marked.of_device
    tables["device_events"] = _with_steps(tables["device_events"], tables["runtime_calls"] if launched else None, steps)
    collectives = collective_table(tables, raw.metadata.groups)
    shown = name if raw.process is None else f"{name} ({raw.process})"
    return Trace(
        source=Source(
            name=sound_text(shown),
            file_bytes=file_bytes,
            raw_bytes=raw.raw_bytes,
            events=raw.events,
            truncated=raw.truncated,
            warnings=tuple(raw.warnings),
            quarantined=tuple(quarantined),
        ),
        metadata=raw.metadata,
        threads=raw.threads.select(pl.col(column).cast(dtype) for column, dtype in _THREADS.items()),
        steps=steps,
        steps_from=steps_from,
        collectives=collectives,
        extra_arguments=pl.DataFrame(schema=_EXTRA) if raw.extra_arguments is None else raw.extra_arguments,
        host_order=nesting.order,
        **tables,
    )


def _work(tables: dict[str, pl.DataFrame]) -> Work:
    """The work that a recording shows: device events, from when they were launched; without any, operators."""
    events, calls, own = tables["device_events"], tables["runtime_calls"], tables["operators"]
    backward = own["ts_ns"].to_numpy()[matching(own["name"], lambda name: name.startswith(ENGINE))]
    if events.is_empty():
        return Work(own["ts_ns"].to_numpy(), own["self_ns"].to_numpy(), backward)
    asked = events["ts_ns"].to_numpy().copy()
    launch = rows_of(events["launch"])
    asked[launch >= 0] = calls["ts_ns"].to_numpy()[launch[launch >= 0]]
    return Work(asked, events["duration_ns"].to_numpy(), backward)


def _completed(table: str, given: pl.DataFrame | None, quarantined: list[Quarantine]) -> pl.DataFrame:
    """The table with every column that it may have, in order of time, without events whose times cannot be true."""
    if given is None:
        return _without_rows(table)
    lacking = [column for column in REQUIRED[table] if column not in given.columns]
    if lacking:
        raise ReaderError(f"the table {table!r} has no column {lacking[0]!r}")
    frame = _sound(table, _typed(table, given), quarantined)
    if table == "device_events":
        frame = _placed(frame)
    if table == "counters":
        frame = _told_apart(frame, quarantined)
    return frame if frame["ts_ns"].is_sorted() else frame.sort("ts_ns", maintain_order=True)


@functools.cache
def _without_rows(table: str) -> pl.DataFrame:
    """A shared empty table for a format that lacks it: most recordings lack several, and building each costs time."""
    schema = {column: _REQUIRED_TYPES.get(column, pl.Enum([])) for column in REQUIRED[table]}
    frame = _typed(table, pl.DataFrame(schema=schema))
    return _placed(frame) if table == "device_events" else frame


def _typed(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Names as an ``Enum`` of those that occur, numbers as such; a column that the format lacks is null throughout."""
    schema = frame.schema
    columns: list[pl.Series | pl.Expr] = []
    for column in REQUIRED[table]:
        wanted = _REQUIRED_TYPES.get(column)
        if wanted is None:
            columns += _as_enum(frame[column])
        elif schema[column] != wanted:
            columns.append(pl.col(column).cast(wanted))
    if "thread" not in schema and table not in WITHOUT_THREAD:
        columns.append(pl.lit(_NO_THREAD, pl.Int32).alias("thread"))
    for column, holds in OPTIONAL[table].items():
        if column not in schema:
            columns.append(pl.lit(None, _NUMBERS.get(holds, pl.Enum([]))).alias(column))
        elif holds == "text":
            columns += _as_enum(frame[column])
        elif not schema[column].is_numeric():
            columns.append(pl.col(column).cast(_NUMBERS[holds]))
    return frame.with_columns(columns) if columns else frame


def _placed(events: pl.DataFrame) -> pl.DataFrame:
    """Device events with a number for a device and a stream that are not known."""
    unknown = [column for column in ("device", "stream") if events[column].null_count()]
    return events.with_columns(pl.col(unknown).cast(pl.Int64).fill_null(_NO_PLACE)) if unknown else events


def _told_apart(samples: pl.DataFrame, quarantined: list[Quarantine]) -> pl.DataFrame:
    """The samples of the first counters: a recording has some dozens of a device, a hostile one any number."""
    counters = samples.select("device", "name").unique(maintain_order=True)
    if len(counters) <= MOST_COUNTERS:
        return samples
    kept = samples.join(counters.head(MOST_COUNTERS), on=["device", "name"], how="semi", nulls_equal=True)
    quarantined.append(Quarantine("more counters than can be distinguished", len(samples) - len(kept), 0))
    return kept


def _as_enum(column: pl.Series) -> list[pl.Series]:
    """The column as an ``Enum``, where it is none yet."""
    if isinstance(column.dtype, pl.Enum):
        return []
    texts = column.cast(pl.String)
    return [texts.cast(pl.Enum(texts.drop_nulls().unique(maintain_order=True)))]


def _sound(table: str, frame: pl.DataFrame, quarantined: list[Quarantine]) -> pl.DataFrame:
    """The events whose times, and values where they have any, can be true; the others are counted."""
    wrong = pl.col("ts_ns").is_null()
    if "duration_ns" in REQUIRED[table]:
        wrong |= pl.col("duration_ns").is_null() | (pl.col("duration_ns") < 0)
    tests = [("no usable time", wrong)]
    if "value" in REQUIRED[table]:
        tests.append(("no usable value", ~pl.col("value").abs().lt(_LARGEST_VALUE).fill_null(value=False)))
    for reason, failed in tests:
        lost = frame.select(failed.sum()).item()
        if lost:
            quarantined.append(Quarantine(f"{reason} ({table.replace('_', ' ')})", lost, 0))
            frame = frame.filter(~failed)
    return frame


def _check_references(tables: dict[str, pl.DataFrame], threads: int) -> None:
    """Raises `ReaderError` for kinds of device events and rows of threads that there are not."""
    if unknown := set(distinct(tables["device_events"]["kind"])) - set(DEVICE_KINDS):
        raise ReaderError(f"a device event is of the kind {min(unknown)!r}: there are {', '.join(DEVICE_KINDS)}")
    for table in HOST_TABLES:
        if not tables[table]["thread"].is_between(0, threads - 1).all():
            raise ReaderError(f"the table {table!r} names a thread that is no row of the {threads:,} threads")


def _with_steps(events: pl.DataFrame, runtime: pl.DataFrame | None, steps: pl.DataFrame) -> pl.DataFrame:
    """With the step in which each event was launched by a call of ``runtime``, or in which it began itself."""
    if runtime is None:
        return events.with_columns(link_series("step", step_of_launch(events["ts_ns"].to_numpy(), steps)))
    launch = rows_of(events["launch"])
    starts = runtime["ts_ns"].to_numpy()
    linked = launch >= 0
    step = np.full(len(events), -1, np.int32)
    if len(starts):
        step[linked] = step_of_launch(starts[launch[linked]], steps)
    return events.with_columns(link_series("step", step))
