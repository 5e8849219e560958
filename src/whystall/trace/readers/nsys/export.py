"""Shared parts of an export's tables: identifiers that pack a process, times that count from the session's start.

Exports of all ages lack tables and columns that others have; a missing column is null in every row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import polars as pl

from whystall.trace.model import Quarantine
from whystall.trace.readers.table_source import TableSource

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATIONS: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RECORDED_EVENTS: Final = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
OVERHEAD: Final = "CUPTI_ACTIVITY_KIND_OVERHEAD"
RANGES: Final = "NVTX_EVENTS"
FIELDS: Final = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
THREADS: Final = "ThreadNames"
TEXTS: Final = "StringIds"
START: Final = "TARGET_INFO_SESSION_START_TIME"
SPAN: Final = "ANALYSIS_DETAILS"
GPUS: Final = "TARGET_INFO_GPU"
DEVICES: Final = "TARGET_INFO_CUDA_DEVICE"
COUNTERS: Final = "GPU_METRICS"
COUNTER_NAMES: Final = "TARGET_INFO_GPU_METRICS"
TABLES: Final = (
    KERNELS, COPIES, SETS, GRAPHS, CALLS, SYNCHRONIZATIONS, RECORDED_EVENTS, OVERHEAD, RANGES, FIELDS, THREADS, TEXTS,
    START, SPAN, GPUS, DEVICES, COUNTERS, COUNTER_NAMES,
)  # fmt: skip
"""All that is ever read. META_DATA_CAPTURE, TARGET_INFO_SYSTEM_ENV and PROCESSES hold environment and arguments."""

# A globalTid is hardware (8 bits), virtual machine (8), process (24), thread (24); a globalPid has no thread.
_THREAD_BITS: Final = 24
_THREAD_MASK: Final = (1 << _THREAD_BITS) - 1
_NOT_A_NUMBER: Final = (1 << 32) - 1  # the value of an identifier of 32 bits for none
_DAY_NS: Final = 86_400 * 1_000_000_000
_LATEST_NS: Final = 1 << 61
_NO_NAME: Final = "unnamed"


@dataclass(slots=True)
class Export:
    """An open export, and the events that had to be set aside."""

    source: TableSource
    quarantined: dict[str, int] = field(default_factory=dict)

    def events_of(self, table: str, identifier: str, *integers: str, end: str = "end") -> pl.DataFrame:
        """The rows of a table of events with plausible times, their process from an identifier, unsorted.

        The columns are ``process`` (the identifier without its thread), ``ts_ns``, ``duration_ns``, ``identifier`` and
        the requested ones.
        """
        columns = dict.fromkeys(dict.fromkeys(["start", end, identifier, *integers]), int)
        rows = self.source.read(table, columns, needed=("start", end, identifier))
        return self.sound(rows.rename({"start": "ts_ns", end: "end"}), identifier)

    def sound(self, rows: pl.DataFrame, identifier: str) -> pl.DataFrame:
        """The rows whose times and process can be true; the others are counted by reason."""
        begin, end = pl.col("ts_ns"), pl.col("end")
        rows = self._without(rows, begin.is_null(), "no usable start time")
        middle = int(rows["ts_ns"].median() or 0) if len(rows) else 0  # type: ignore[arg-type]  # of integers
        low, high = max(middle - _DAY_NS, -_LATEST_NS), min(middle + _DAY_NS, _LATEST_NS)
        rows = self._without(rows, ~begin.is_between(low, high), "start time far outside the trace")
        rows = self._without(rows, end.is_null(), "no end time")
        rows = self._without(rows, end < begin, "negative duration")
        rows = self._without(rows, end > high, "duration of more than a day")
        rows = self._without(rows, pl.col(identifier).is_null(), "no process is named")
        return rows.select(
            self.process_of(identifier),
            "ts_ns",
            (end - begin).alias("duration_ns"),
            pl.exclude("ts_ns", "end"),
        )

    def process_of(self, identifier: str) -> pl.Expr:
        """The column ``process``: an identifier without its thread."""
        return (pl.col(identifier) // (1 << _THREAD_BITS)).alias("process")

    def names(self, *columns: pl.Series) -> dict[int, str]:
        """The texts that columns refer to by number."""
        wanted: set[int] = set()
        for column in columns:
            wanted |= set(column.drop_nulls().unique().to_list())
        return self.source.texts(TEXTS, "id", "value", wanted)

    def set_aside(self, reason: str, events: int) -> None:
        """Counts events under a reason."""
        if events:
            self.quarantined[reason] = self.quarantined.get(reason, 0) + events

    def quarantine(self) -> list[Quarantine]:
        """The events set aside in the whole file, by reason."""
        return [Quarantine(reason, events, 0) for reason, events in self.quarantined.items()]

    def _without(self, rows: pl.DataFrame, wrong: pl.Expr, reason: str) -> pl.DataFrame:
        kept = rows.filter(~wrong)
        self.set_aside(reason, len(rows) - len(kept))
        return kept


def named(numbers: pl.Series, names: dict[int, str]) -> pl.Series:
    """The text of each number; a missing one is named as such."""
    distinct = numbers.unique().drop_nulls()
    texts = [names.get(number) or f"{_NO_NAME} {number}" for number in distinct.to_list()]
    found = numbers.replace_strict(distinct, pl.Series(texts, dtype=pl.String), default=None, return_dtype=pl.String)
    return found.fill_null(_NO_NAME)


def known(column: str) -> pl.Expr:
    """An identifier of 32 bits, -1 for none."""
    return pl.when(pl.col(column) >= _NOT_A_NUMBER).then(-1).otherwise(pl.col(column)).alias(column)


def process_number(process: int) -> int:
    """The number that the system gave a process."""
    return process & _THREAD_MASK


def thread_number(identifiers: pl.Expr) -> pl.Expr:
    """The numbers that the system gave threads."""
    return identifiers & _THREAD_MASK
