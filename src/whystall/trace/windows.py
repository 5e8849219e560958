"""Joins windows of one process, recorded one after another, into one recording.

The time between them, when no rank was recorded, is cut out: a step that ends where a window does is followed by the
first of the next. Recorded events keep their length and order. Ids that a profiler restarts in each window are kept
apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.columns import rows_by_value, stacked
from whystall.trace.link import HOST_TABLES
from whystall.trace.model import TABLES, Source, Trace
from whystall.trace.ranks import Facts, facts_of

# Columns that hold rows of another table.
_LINKS: Final[Mapping[str, Mapping[str, str]]] = {
    "operators": {"parent": "operators", "frame": "python_functions", "forward": "operators"},
    "python_functions": {"parent": "python_functions", "operator": "operators", "module": "python_functions"},
    "runtime_calls": {"operator": "operators", "frame": "python_functions"},
    "device_events": {
        "launch": "runtime_calls",
        "operator": "operators",
        "frame": "python_functions",
        "step": "steps",
    },
}
_COLLECTIVE_SOURCES: Final = {"device": "device_events", "operator": "operators", "annotation": "annotations"}
# Ids of one kind, in any table.
_IDS: Final = (("correlation", "wait_on_correlation"), ("external_id",), ("id",), ("event_index",))
JOINED: Final = " + "
"""Separator between the names of windows that are one recording."""
_MOST_NAMES: Final = 3


def shifts(spans: Sequence[tuple[int, int]]) -> list[int]:
    """The shifts of the recordings that remove times without a recording.

    ``spans`` are begin and end of the recordings of all ranks.

    >>> shifts([(0, 10), (100, 110), (5, 12), (101, 130), (200, 210)])
    [0, -88, 0, -88, -158]
    """
    moved: dict[tuple[int, int], int] = {}
    end, cut = None, 0
    for span in sorted(spans):
        if end is not None and span[0] > end:
            cut += span[0] - end
        end = max(span[1], end) if end is not None else span[1]
        moved[span] = -cut
    return [moved[span] for span in spans]


def moved_by(windows: Sequence[Sequence[Facts]]) -> list[list[int]]:
    """By how many nanoseconds each rank's windows move as `as_one` joins them: none where no rank has several."""
    if all(len(own) == 1 for own in windows):
        return [[0] for _ in windows]
    moved = iter(shifts([(one.start_ns, one.end_ns) for own in windows for one in own]))
    return [[next(moved) for _ in own] for own in windows]


def as_one(windows: Sequence[Trace], moved: Sequence[int]) -> Trace:
    """The windows, which follow each other, as one trace; each window's events are moved by its entry of ``moved``."""
    if len(windows) == 1 and not moved[0]:
        return windows[0]
    threads, thread_of = _threads(windows)
    ids = [_first_ids(windows, columns) for columns in _IDS]
    parts: dict[str, list[pl.DataFrame]] = {table: [] for table in TABLES if table != "threads"}
    for number, (window, shift) in enumerate(zip(windows, moved, strict=True)):
        rows = {table: sum(len(getattr(one, table)) for one in windows[:number]) for table in TABLES}
        added = {column: first[number] for columns, first in zip(_IDS, ids, strict=True) for column in columns}
        for table, frames in parts.items():
            frame = _between_its_events(window) if table == "counters" else getattr(window, table)
            frames.append(_moved(table, frame, shift, thread_of[number], rows, added))
    tables = {table: stacked(frames) for table, frames in parts.items()}
    return Trace(
        source=_source([window.source for window in windows]),
        metadata=windows[-1].metadata,
        threads=threads,
        steps_from=windows[-1].steps_from,
        host_order=_host_order(windows, tables),
        **tables,
    )


def _between_its_events(window: Trace) -> pl.DataFrame:
    """A window's counters from its first event to its last: samples outside would lie in another window."""
    facts = facts_of(window, alone=True)
    return window.counters.filter(pl.col("ts_ns").is_between(facts.start_ns, facts.end_ns))


def _moved(
    table: str,
    frame: pl.DataFrame,
    shift: int,
    thread_of: NDArray[np.int32],
    rows: Mapping[str, int],
    ids: Mapping[str, int],
) -> pl.DataFrame:
    """One window's table as it stands among the others."""
    changed: list[pl.Expr | pl.Series] = []
    if "ts_ns" in frame.columns:
        changed.append(pl.col("ts_ns") + shift)
    if "thread" in frame.columns and len(frame):
        number = frame["thread"].fill_null(-1).to_numpy()
        changed.append(pl.Series("thread", np.where(number >= 0, thread_of[number], -1).astype(np.int32)))
    changed += [pl.col(column) + rows[target] for column, target in _LINKS.get(table, {}).items()]
    changed += [pl.col(column) + first for column, first in ids.items() if column in frame.columns]
    if table == "collectives":
        source = pl.col("source").cast(pl.String)
        of = {name: rows[target] for name, target in _COLLECTIVE_SOURCES.items()}
        changed.append(pl.col("row") + source.replace_strict(of, default=0, return_dtype=pl.Int64))
    if table == "extra_arguments":
        of_table = pl.col("table").cast(pl.String).replace_strict(dict(rows), default=0, return_dtype=pl.Int64)
        changed.append(pl.col("row") + of_table)
    return frame.with_columns(changed) if changed else frame


def _threads(windows: Sequence[Trace]) -> tuple[pl.DataFrame, list[NDArray[np.int32]]]:
    """The threads of all windows, each once, and by window where each of its own stands among them."""
    known: dict[tuple[str | None, ...], int] = {}
    # One more row makes an empty table indexable, too.
    of = [
        np.array([known.setdefault(row[:2], len(known)) for row in one.threads.rows()] or [0], np.int32)
        for one in windows
    ]
    names: dict[int, tuple[str | None, ...]] = {}
    for window, places in zip(windows, of, strict=True):
        for row, place in zip(window.threads.rows(), places.tolist(), strict=False):
            names[place] = row if row[2] is not None or place not in names else names[place]
    return pl.DataFrame([names[place] for place in sorted(names)], schema=windows[0].threads.schema, orient="row"), of


def _first_ids(windows: Sequence[Trace], columns: Sequence[str]) -> list[int]:
    """The offset of each window's ids, so that no two windows share an id."""
    first, added = 0, []
    for window in windows:
        added.append(first)
        for table in TABLES:
            frame = getattr(window, table)
            for column in set(columns) & set(frame.columns):
                most = frame[column].max() if frame[column].dtype.is_integer() else None
                first = max(first, added[-1] + int(most) + 1) if isinstance(most, int) else first
    return added


def _host_order(windows: Sequence[Trace], tables: Mapping[str, pl.DataFrame]) -> NDArray[np.uint32]:
    """The host events of all windows by thread, then as each window has them."""
    begin = dict(zip(HOST_TABLES, np.cumsum([0, *(len(tables[table]) for table in HOST_TABLES)])[:-1], strict=True))
    before = dict.fromkeys(HOST_TABLES, 0)
    order = []
    for window in windows:
        lengths = [len(getattr(window, table)) for table in HOST_TABLES]
        place = np.concatenate(
            [
                np.arange(length, dtype=np.int64) + begin[table] + before[table]
                for table, length in zip(HOST_TABLES, lengths, strict=True)
            ]
        )
        order.append(place[window.host_order])
        for table, length in zip(HOST_TABLES, lengths, strict=True):
            before[table] += length
    whole = np.concatenate(order)
    thread = np.concatenate([tables[table]["thread"].to_numpy() for table in HOST_TABLES])
    by_thread = rows_by_value(thread[whole])
    return np.concatenate([whole[rows] for rows in by_thread.values()] or [whole]).astype(np.uint32)


def _source(sources: Sequence[Source]) -> Source:
    names = [source.name for source in sources]
    more = len(names) - _MOST_NAMES
    return Source(
        name=JOINED.join([*names[:_MOST_NAMES], *([f"{more} more"] if more > 0 else [])]),
        file_bytes=sum(source.file_bytes for source in sources),
        raw_bytes=sum(source.raw_bytes for source in sources),
        events=sum(source.events for source in sources),
        truncated=any(source.truncated for source in sources),
        warnings=tuple(dict.fromkeys(text for source in sources for text in source.warnings)),
        quarantined=tuple(one for source in sources for one in source.quarantined),
    )
