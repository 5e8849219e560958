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
from whystall.fleet.parquet import read_columns

__all__ = ["Operation", "Steps", "read_operation_log"]

_NUMBERS: Final = ("dp_rank", "stage", "step", "seq_id", "mc", "mb_id", "gmc")
_TIMES: Final = ("start_ts", "duration")
_MOST_ROWS: Final = 200_000_000
_LONGEST_S: Final = 1e11  # a time stamp since 1970 is 2e9
_KEY: Final = ("dp_rank", "stage", "optype", "seq_id", "mc", "mb_id", "gmc")


@dataclass(frozen=True, slots=True, order=True)
class Operation:
    """One operation of one worker, as every step has it. A field that does not apply to its kind is -1."""

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
        # For a send and a receive that start together (one call makes both) the kind decides, so that steps agree.
        ordered = rows.sort("dp_rank", "stage", "start_ts", "optype", "seq_id", "mc", "mb_id")
        operations = tuple(Operation(*row) for row in ordered.select(_KEY).iter_rows())
        if len(set(operations)) != len(operations):
            raise InputError(f"{path}: step {step} holds an operation twice: is it the log of one job?")
        found.setdefault(operations, []).append((int(step), ordered))
    return [_together(operations, steps) for operations, steps in _merged(found)]


def _merged(
    found: dict[tuple[Operation, ...], list[tuple[int, pl.DataFrame]]],
) -> Iterator[tuple[tuple[Operation, ...], list[tuple[int, pl.DataFrame]]]]:
    """Steps whose orders differ in communication alone are one schedule: only the order of the rest counts."""
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
    """The columns of a log, checked. Raises ``InputError``."""
    table = read_columns(path, {**dict.fromkeys(_NUMBERS, "int"), **dict.fromkeys(_TIMES, "float"), "optype": "text"})
    if not 0 < table.height <= _MOST_ROWS:
        raise InputError(f"{path} holds {table.height:,} operations; between 1 and {_MOST_ROWS:,} can be read")
    if sum(table.null_count().row(0)) or not all(table.select(pl.col(_TIMES).is_finite().all()).row(0)):
        raise InputError(f"{path}: some operations have no number or time")
    shortest, longest, first, last = table.select(
        *(pl.col("duration").min().alias("shortest"), pl.col("duration").max().alias("longest")),
        *(pl.col("start_ts").min().alias("first"), pl.col("start_ts").max().alias("last")),
    ).row(0)
    if shortest < 0:
        raise InputError(f"{path}: some durations are negative")
    if longest == 0 or max(longest, -first, last) > _LONGEST_S:
        raise InputError(f"{path}: its times are no seconds: the longest operation takes {longest:g}")
    return table
