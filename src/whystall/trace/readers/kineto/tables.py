"""From scanned categories to typed tables (without the links between them)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall._native import Scanner
from whystall.trace.model import Quarantine
from whystall.trace.readers.kineto import categories
from whystall.trace.readers.kineto.clock import Clock, clock_of
from whystall.trace.readers.kineto.order import simultaneous_in_order
from whystall.trace.readers.kineto.raw import FLOAT, INTEGER, MISSING_TIME, TEXT, Integers, RawTable, coded, nullable
from whystall.trace.readers.kineto.strangers import FOREIGN_KINDS
from whystall.trace.schema import OPTIONAL

_COMPLETE: Final = ord("X")
_BEGIN_END: Final = (ord("B"), ord("E"))
_MEMORY_EVENT: Final = "[memory]"

_Keys = dict[str, tuple[str, ...]]
# Names of arguments for each column of `whystall.trace.schema`, from newest to oldest.
_COLLECTIVE: Final[_Keys] = {
    "collective": ("Collective name",),
    "dtype": ("dtype",),
    "in_elements": ("In msg nelems", "In msg size"),
    "out_elements": ("Out msg nelems", "Out msg size"),
    "group": ("Process Group Name", "Process Group Id"),
    "group_size": ("Group size",),
    "group_ranks": ("Process Group Ranks",),
    "sequence_number": ("Seq",),
    "peer": ("Dst Rank", "Src Rank"),
}
_EXTERNAL_ID: Final[_Keys] = {"external_id": ("External id", "external id")}
_EVENT_INDEX: Final[_Keys] = {"event_index": ("Ev Idx", "Profiler Event Index")}
_KEYS: Final[dict[str, _Keys]] = {
    categories.OPERATOR: {
        **_EXTERNAL_ID,
        "sequence": ("Sequence number",),
        "forward_thread": ("Fwd thread id",),
        "input_dims": ("Input Dims", "Input dims"),
        "input_types": ("Input type",),
        "input_strides": ("Input Strides",),
        "concrete_inputs": ("Concrete Inputs",),
        "call_stack": ("Call stack",),
        "module_hierarchy": ("Module Hierarchy",),
        **_COLLECTIVE,
        "record_function_id": ("Record function id",),
        **_EVENT_INDEX,
    },
    categories.PYTHON: {
        "python_id": ("Python id",),
        "python_parent_id": ("Python parent id",),
        "module_id": ("Python module id",),
        **_EVENT_INDEX,
    },
    categories.RUNTIME: {"correlation": ("correlation",), **_EXTERNAL_ID, "callback_id": ("cbid", "cid")},
    categories.DEVICE: {
        "device": ("device", "Device"),
        # Kernels of CUDA graphs may be shown in a lane of their own: their dependencies are those of the stream they
        # ran on.
        "stream": ("original_stream", "stream"),
        "correlation": ("correlation",),
        **_EXTERNAL_ID,
        "bytes": ("bytes", "Bytes"),
        "grid": ("grid",),
        "block": ("block",),
        "registers_per_thread": ("registers per thread",),
        "shared_memory_bytes": ("shared memory",),
        "blocks_per_sm": ("blocks per SM",),
        "warps_per_sm": ("warps per SM",),
        "occupancy_percent": ("est. achieved occupancy %",),
        "context": ("context",),
        "queued": ("queued",),
        "memory_bandwidth_gb_per_s": ("memory bandwidth (GB/s)",),
        **_COLLECTIVE,
    },
    categories.ANNOTATION: {
        **_EXTERNAL_ID,
        "input_dims": ("Input Dims", "Input dims"),
        "input_types": ("Input type",),
        **_COLLECTIVE,
        **_EVENT_INDEX,
    },
    categories.DEVICE_ANNOTATION: _EXTERNAL_ID,
    categories.MEMORY: {
        "device_type": ("Device Type",),
        "device": ("Device Id",),
        "address": ("Addr",),
        "bytes": ("Bytes",),
        "total_allocated": ("Total Allocated",),
        "total_reserved": ("Total Reserved",),
        **_EVENT_INDEX,
    },
    categories.FLOW: {"id": (".id",), "binding_point": (".bp",)},
    categories.SYNCHRONIZATION: {
        "device": ("device",),
        "stream": ("stream",),
        "correlation": ("correlation",),
        "wait_on_stream": ("wait_on_stream",),
        "wait_on_correlation": ("wait_on_cuda_event_record_corr_id",),
        "event_id": ("wait_on_cuda_event_id",),
    },
    categories.OTHER: {},
}


KINDS: Final = tuple(_KEYS)
"""The tables that events of some category become."""
ARGUMENTS: Final = frozenset(key for keys in _KEYS.values() for names in keys.values() for key in names)
"""Every argument that some table has a column for."""


@dataclass(slots=True)
class Build:
    """State shared while tables are built, and the events that had to be set aside."""

    scanner: Scanner
    names: list[str]
    clock: Clock
    quarantined: dict[str, Quarantine] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    extra: list[pl.DataFrame] = field(default_factory=list)
    foreign: NDArray[np.bool_] | None = None
    """Which threads are of a process that is not the recorded one."""

    def set_aside(self, reason: str, events: int, device_ns: int = 0) -> None:
        """Counts events under a reason."""
        if events:
            before = self.quarantined.get(reason, Quarantine(reason, 0, 0))
            self.quarantined[reason] = Quarantine(reason, before.events + events, before.device_ns + device_ns)


def build_table(kind: str, tables: Sequence[RawTable], build: Build) -> pl.DataFrame:
    """One typed table from all categories of its kind, sorted by start time."""
    start = np.concatenate([build.clock.starts(table.start) for table in tables] or [np.zeros(0, np.int64)])
    duration = np.concatenate([build.clock.durations(table.duration) for table in tables] or [np.zeros(0, np.int64)])
    phase = np.concatenate([table.phase for table in tables] or [np.zeros(0, np.uint8)])
    keep = sound_rows(start, duration, phase, kind, build)
    if kind == categories.MEMORY and _MEMORY_EVENT in build.names:
        ids = np.concatenate([table.name for table in tables] or [np.zeros(0, np.uint32)])
        keep = keep[ids[keep] == build.names.index(_MEMORY_EVENT)]  # beside them: marks of the profiler's own windows
    thread = np.concatenate([table.thread for table in tables] or [np.zeros(0, np.int32)])
    keep = _own(keep, thread, kind, build)
    duration[duration == MISSING_TIME] = 0
    rows = keep[np.argsort(start[keep], kind="stable")]
    columns: dict[str, Any] = {"ts_ns": start[rows]}
    if kind not in (categories.MEMORY, categories.FLOW):
        columns["duration_ns"] = duration[rows]
    if kind != categories.MEMORY:
        ids = np.concatenate([table.name for table in tables] or [np.zeros(0, np.uint32)])[rows]
        columns["name"] = coded(ids, lambda used: [build.names[i] for i in used.tolist()], len(build.names))
    columns["thread"] = thread[rows]
    if kind == categories.DEVICE:
        columns["kind"] = _category_column(tables, rows, categories.device_kind)
    if kind in (categories.FLOW, categories.OTHER):
        columns["category"] = _category_column(tables, rows, str)
        columns["phase"] = pl.Series(phase[rows])
    for name, holds in OPTIONAL[kind].items():
        columns[name] = _argument_column(tables, rows, holds, _KEYS[kind][name], build.scanner)
    frame = pl.DataFrame(columns)
    order = simultaneous_in_order(kind, frame)
    if order is not None:
        frame, rows = frame[order], rows[order]
    _collect_extra(kind, tables, rows, build)
    return frame


@functools.cache
def without_rows(kind: str) -> pl.DataFrame:
    """An empty table of a kind, as `build_table` makes it: most recordings have no events of several kinds."""
    return build_table(kind, [], Build(Scanner([], 1, 1), [], clock_of([], None)))


def _own(keep: NDArray[np.intp], thread: NDArray[np.int32], kind: str, build: Build) -> NDArray[np.intp]:
    """The rows without those of other processes, which are counted."""
    if kind not in FOREIGN_KINDS or build.foreign is None or not build.foreign.any():
        return keep
    foreign = build.foreign[thread[keep]]
    build.set_aside("of another process, which called no operator and launched nothing", int(foreign.sum()))
    return keep[~foreign]


def sound_rows(
    start: NDArray[np.int64], duration: NDArray[np.int64], phase: NDArray[np.uint8], kind: str, build: Build
) -> NDArray[np.intp]:
    """The rows whose times can be true; the others are counted by reason."""
    complete = phase == _COMPLETE
    device = kind == categories.DEVICE
    bad = np.zeros(len(start), np.bool_)
    tests: list[tuple[str, Callable[[], NDArray[np.bool_]]]] = [
        ("no usable start time", lambda: start == MISSING_TIME),
        ("start time far outside the trace", lambda: ~build.clock.plausible(start)),
        ("no usable duration", lambda: complete & (duration == MISSING_TIME)),
        ("negative duration", lambda: (duration < 0) & (duration != MISSING_TIME)),
        (
            "duration of more than a day",
            lambda: duration > build.clock.latest_ns - build.clock.earliest_ns,
        ),
        ("separate begin and end events are not read", lambda: np.isin(phase, _BEGIN_END)),
    ]
    for reason, test in tests:
        failed = test() & ~bad
        if failed.any():
            lost = np.clip(duration[failed], 0, build.clock.latest_ns - build.clock.earliest_ns)
            build.set_aside(reason, int(np.count_nonzero(failed)), int(lost.sum(dtype=object)) if device else 0)
            bad |= failed
    return np.flatnonzero(~bad)


def _category_column(tables: Sequence[RawTable], rows: NDArray[np.intp], label: Callable[[str], str]) -> pl.Series:
    labels = sorted({label(table.category) for table in tables})
    code_of = {text: code for code, text in enumerate(labels)}
    codes = [np.full(table.rows, code_of[label(table.category)], np.uint32) for table in tables]
    return pl.Series(np.concatenate(codes or [np.zeros(0, np.uint32)])[rows]).cat.to(pl.Enum(labels))


def _argument_column(
    tables: Sequence[RawTable], rows: NDArray[np.intp], holds: str, keys: tuple[str, ...], scanner: Scanner
) -> pl.Series:
    if holds == "text":
        ids = np.concatenate([table.text_ids(*keys) for table in tables] or [np.zeros(0, np.int32)])
        return coded(ids[rows], scanner.texts, scanner.text_count())
    parts = [table.integers(*keys) if holds == "integer" else table.floats(keys[0]) for table in tables]
    return _joined(parts, rows)


def _joined(parts: Sequence[Integers], rows: NDArray[np.intp]) -> pl.Series:
    values = np.concatenate([values for values, _ in parts] or [np.zeros(0, np.int64)])[rows]
    if all(known is None for _, known in parts):
        return pl.Series(values)
    known = np.concatenate([np.ones(len(values), np.bool_) if known is None else known for values, known in parts])
    return nullable(values, known[rows])


def _collect_extra(kind: str, tables: Sequence[RawTable], rows: NDArray[np.intp], build: Build) -> None:
    place = np.full(sum(table.rows for table in tables), -1, np.int64)
    place[rows] = np.arange(len(rows))
    offset = 0
    keys: dict[str, int] = {}
    parts: dict[int, list[tuple[int, NDArray[np.int64], NDArray[Any]]]] = {INTEGER: [], FLOAT: [], TEXT: []}
    for table in tables:
        for key, value_kind, at, values in table.rest():
            where = place[at.astype(np.int64) + offset]
            kept = where >= 0
            code = keys.setdefault(key, len(keys))
            parts[min(value_kind, TEXT)].append((code, where[kept], values[kept]))
        offset += table.rows
    for value_kind, found in parts.items():
        if not found:
            continue
        values = np.concatenate([values for _, _, values in found])
        texts = (
            coded(values, build.scanner.texts, build.scanner.text_count())
            if value_kind == TEXT
            else pl.Series(values).cast(pl.String)
        )
        key_of = np.repeat([code for code, _, _ in found], [len(where) for _, where, _ in found]).astype(np.uint32)
        build.extra.append(
            pl.DataFrame(
                {
                    "table": pl.Series([kind], dtype=pl.Categorical).new_from_index(0, len(values)),
                    "row": np.concatenate([where for _, where, _ in found]),
                    "key": pl.Series(key_of).cat.to(pl.Enum(list(keys))).cast(pl.Categorical),
                    "value": texts.cast(pl.Categorical),
                }
            )
        )


def group_tables(tables: Sequence[RawTable], names: list[str]) -> dict[str, list[RawTable]]:
    """Scanned categories by the table they belong to.

    Traces of 2021 write memory events without a category: an instant event named ``[memory]``.
    """
    groups: dict[str, list[RawTable]] = {kind: [] for kind in KINDS}
    memory_name = names.index(_MEMORY_EVENT) if _MEMORY_EVENT in names else -1
    for table in tables:
        if table.metadata:
            continue
        kind = categories.table_of(table.category)
        if table.category == "" and np.any(table.name == memory_name):
            kind = categories.MEMORY
        groups[kind].append(table)
    return groups
