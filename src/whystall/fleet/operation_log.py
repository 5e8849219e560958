"""Operation logs of pipeline- and data-parallel jobs: one row for each operation of each worker.

A worker is a stage of a data-parallel rank. The columns are those of the traces that ByteDance published with
"Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.errors import InputError

__all__ = ["Operation", "Steps", "read_operation_log"]

_NUMBERS: Final = ("dp_rank", "stage", "step", "seq_id", "mc", "mb_id", "gmc")
_TIMES: Final = ("start_ts", "duration")
_MOST_ROWS: Final = 200_000_000
_KEY: Final = ("dp_rank", "stage", "optype", "seq_id", "mc", "mb_id", "gmc")


@dataclass(frozen=True, slots=True, order=True)
class Operation:
    """One operation of one worker, as every step has it. What does not apply to its kind is -1."""

    dp_rank: int
    stage: int
    kind: str
    sequence: int
    model_chunk: int
    """The part of the stage that it belongs to, with interleaved stages."""
    microbatch: int
    pipeline_chunk: int
    """The part of the whole pipeline: stage after stage, and round again with interleaved stages."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in which every worker did the same operations in the same order.

    Times are seconds, of shape (operations, steps).
    """

    steps: tuple[int, ...]
    operations: tuple[Operation, ...]
    """By worker, and within it in the order of their start."""
    start_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]


def read_operation_log(path: Path) -> list[Steps]:
    """The steps of a log (Parquet), those of one schedule together. Raises ``InputError`` where it is no such log."""
    table = _read(path)
    found: dict[tuple[Operation, ...], list[tuple[int, pl.DataFrame]]] = {}
    for (step,), rows in sorted(table.partition_by("step", as_dict=True).items()):
        # Of a send and a receive that start together (one call makes both) the kind decides, so that steps agree.
        ordered = rows.sort("dp_rank", "stage", "start_ts", "optype", "seq_id", "mc", "mb_id")
        operations = tuple(Operation(*row) for row in ordered.select(_KEY).iter_rows())
        if len(set(operations)) != len(operations):
            raise InputError(f"{path}: step {step} holds an operation twice: is it the log of one job?")
        found.setdefault(operations, []).append((int(step), ordered))
    return [_together(operations, steps) for operations, steps in _merged(found)]


def _merged(
    found: dict[tuple[Operation, ...], list[tuple[int, pl.DataFrame]]],
) -> Iterator[tuple[tuple[Operation, ...], list[tuple[int, pl.DataFrame]]]]:
    """Steps whose orders differ in communication alone are one schedule: what counts is the order of the rest."""
    merged: dict[tuple[Operation, ...], tuple[tuple[Operation, ...], list[tuple[int, pl.DataFrame]]]] = {}
    for operations, steps in found.items():
        schedule = tuple(one for one in operations if not one.kind.endswith(("-send", "-recv")))
        rest = frozenset(operations)
        known = merged.get(schedule)
        if known is None or frozenset(known[0]) != rest:
            merged[schedule if known is None else operations] = (operations, list(steps))
        else:
            places = {one: place for place, one in enumerate(operations)}
            order = [places[one] for one in known[0]]
            known[1].extend((step, rows[order]) for step, rows in steps)
    yield from merged.values()


def _together(operations: tuple[Operation, ...], steps: list[tuple[int, pl.DataFrame]]) -> Steps:
    start, duration = (
        np.column_stack([rows[name].cast(pl.Float64).to_numpy() for _, rows in steps]) for name in _TIMES
    )
    return Steps(tuple(step for step, _ in steps), operations, start, duration)


def _read(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    try:
        lazy = pl.scan_parquet(path)
        names = set(lazy.collect_schema().names())
        missing = sorted({*_NUMBERS, *_TIMES, "optype"} - names)
        if missing:
            raise InputError(f"{path} is no operation log: it lacks the columns {', '.join(missing)}")
        rows = lazy.select(pl.len()).collect().item()
        if not 0 < rows <= _MOST_ROWS:
            raise InputError(f"{path} holds {rows:,} operations; between 1 and {_MOST_ROWS:,} can be read")
        columns = [pl.col(name).cast(pl.Int64) for name in _NUMBERS] + [
            pl.col(name).cast(pl.Float64) for name in _TIMES
        ]
        table = lazy.select(*columns, pl.col("optype").cast(pl.String)).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    if sum(table.null_count().row(0)) or not table.select(pl.col(_TIMES).is_finite().all()).row(0) == (True, True):
        raise InputError(f"{path}: some operations have no number or time")
    if table.select(pl.col("duration").min()).item() < 0:
        raise InputError(f"{path}: some durations are negative")
    return table
