"""From scanned categories to the typed tables of a `Trace` (without the links between them)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall._native import Scanner
from whystall.trace import categories
from whystall.trace.clock import Clock
from whystall.trace.model import Quarantine
from whystall.trace.raw import FLOAT, INTEGER, MISSING_TIME, TEXT, Integers, RawTable, coded, nullable

_COMPLETE: Final = ord("X")
_BEGIN_END: Final = (ord("B"), ord("E"))
_MEMORY_EVENT: Final = "[memory]"

# Columns by table: name, how to read it, and the argument's names from newest to oldest.
_Spec = tuple[str, str, tuple[str, ...]]
_EVENT_INDEX: Final[_Spec] = ("event_index", "integer", ("Ev Idx", "Profiler Event Index"))
_COLLECTIVE: Final[tuple[_Spec, ...]] = (
    ("collective", "text", ("Collective name",)),
    ("dtype", "text", ("dtype",)),
    ("in_elements", "integer", ("In msg nelems", "In msg size")),
    ("out_elements", "integer", ("Out msg nelems", "Out msg size")),
    ("group", "text", ("Process Group Name", "Process Group Id")),
    ("group_size", "integer", ("Group size",)),
    ("group_ranks", "text", ("Process Group Ranks",)),
    ("sequence_number", "integer", ("Seq",)),
)
_SPECS: Final[dict[str, tuple[_Spec, ...]]] = {
    categories.OPERATOR: (
        ("external_id", "integer", ("External id", "external id")),
        ("sequence", "integer", ("Sequence number",)),
        ("forward_thread", "integer", ("Fwd thread id",)),
        ("input_dims", "text", ("Input Dims", "Input dims")),
        ("input_types", "text", ("Input type",)),
        ("input_strides", "text", ("Input Strides",)),
        ("concrete_inputs", "text", ("Concrete Inputs",)),
        ("call_stack", "text", ("Call stack",)),
        ("module_hierarchy", "text", ("Module Hierarchy",)),
        *_COLLECTIVE,
        ("record_function_id", "integer", ("Record function id",)),
        _EVENT_INDEX,
    ),
    categories.PYTHON: (
        ("python_id", "integer", ("Python id",)),
        ("python_parent_id", "integer", ("Python parent id",)),
        ("module_id", "integer", ("Python module id",)),
        _EVENT_INDEX,
    ),
    categories.RUNTIME: (
        ("correlation", "integer", ("correlation",)),
        ("external_id", "integer", ("External id", "external id")),
        ("callback_id", "integer", ("cbid", "cid")),
    ),
    categories.DEVICE: (
        ("device", "integer", ("device", "Device")),
        ("stream", "integer", ("stream",)),
        ("correlation", "integer", ("correlation",)),
        ("external_id", "integer", ("External id", "external id")),
        ("bytes", "integer", ("bytes", "Bytes")),
        ("grid", "text", ("grid",)),
        ("block", "text", ("block",)),
        ("registers_per_thread", "integer", ("registers per thread",)),
        ("shared_memory_bytes", "integer", ("shared memory",)),
        ("blocks_per_sm", "float", ("blocks per SM",)),
        ("warps_per_sm", "float", ("warps per SM",)),
        ("occupancy_percent", "float", ("est. achieved occupancy %",)),
        ("context", "integer", ("context",)),
        ("queued", "integer", ("queued",)),
        ("memory_bandwidth_gb_per_s", "float", ("memory bandwidth (GB/s)",)),
        *_COLLECTIVE,
    ),
    categories.ANNOTATION: (("external_id", "integer", ("External id", "external id")), *_COLLECTIVE, _EVENT_INDEX),
    categories.DEVICE_ANNOTATION: (("external_id", "integer", ("External id", "external id")),),
    categories.MEMORY: (
        ("device_type", "integer", ("Device Type",)),
        ("device", "integer", ("Device Id",)),
        ("address", "integer", ("Addr",)),
        ("bytes", "integer", ("Bytes",)),
        ("total_allocated", "integer", ("Total Allocated",)),
        ("total_reserved", "integer", ("Total Reserved",)),
        _EVENT_INDEX,
    ),
    categories.FLOW: (("id", "integer", (".id",)), ("binding_point", "text", (".bp",))),
    categories.SYNCHRONIZATION: (
        ("device", "integer", ("device",)),
        ("stream", "integer", ("stream",)),
        ("correlation", "integer", ("correlation",)),
        ("wait_on_stream", "integer", ("wait_on_stream",)),
        ("wait_on_correlation", "integer", ("wait_on_cuda_event_record_corr_id",)),
        ("event_id", "integer", ("wait_on_cuda_event_id",)),
    ),
    categories.OTHER: (),
}


@dataclass(slots=True)
class Build:
    """What the tables are built with, and the events that had to be set aside."""

    scanner: Scanner
    names: list[str]
    clock: Clock
    quarantined: dict[str, Quarantine] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    extra: list[pl.DataFrame] = field(default_factory=list)

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
    keep = _sound(start, duration, phase, kind, build)
    if kind == categories.MEMORY and _MEMORY_EVENT in build.names:
        ids = np.concatenate([table.name for table in tables] or [np.zeros(0, np.uint32)])
        keep = keep[ids[keep] == build.names.index(_MEMORY_EVENT)]  # beside them: marks of the profiler's own windows
    duration[duration == MISSING_TIME] = 0
    rows = keep[np.argsort(start[keep], kind="stable")]
    columns: dict[str, Any] = {"ts_ns": start[rows]}
    if kind not in (categories.MEMORY, categories.FLOW):
        columns["duration_ns"] = duration[rows]
    if kind != categories.MEMORY:
        ids = np.concatenate([table.name for table in tables] or [np.zeros(0, np.uint32)])[rows]
        columns["name"] = coded(ids, lambda used: [build.names[i] for i in used.tolist()], len(build.names))
    columns["thread"] = np.concatenate([table.thread for table in tables] or [np.zeros(0, np.int32)])[rows]
    if kind == categories.DEVICE:
        columns["kind"] = _category_column(tables, rows, categories.device_kind)
    if kind in (categories.FLOW, categories.OTHER):
        columns["category"] = _category_column(tables, rows, str)
        columns["phase"] = pl.Series(phase[rows])
    for name, how, keys in _SPECS[kind]:
        columns[name] = _argument_column(tables, rows, how, keys, build.scanner)
    _collect_extra(kind, tables, rows, build)
    return pl.DataFrame(columns)


def _sound(
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
    tables: Sequence[RawTable], rows: NDArray[np.intp], how: str, keys: tuple[str, ...], scanner: Scanner
) -> pl.Series:
    if how == "text":
        ids = np.concatenate([table.text_ids(*keys) for table in tables] or [np.zeros(0, np.int32)])
        return coded(ids[rows], scanner.texts, scanner.text_count())
    parts = [table.integers(*keys) if how == "integer" else table.floats(keys[0]) for table in tables]
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
    groups: dict[str, list[RawTable]] = {kind: [] for kind in _SPECS}
    memory_name = names.index(_MEMORY_EVENT) if _MEMORY_EVENT in names else -1
    for table in tables:
        if table.metadata:
            continue
        kind = categories.table_of(table.category)
        if table.category == "" and np.any(table.name == memory_name):
            kind = categories.MEMORY
        groups[kind].append(table)
    return groups
