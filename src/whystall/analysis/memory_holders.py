"""Memory at an allocator's peak: its purpose, and the module, function and operator that hold it.

A memory event has an address, a thread and an instant. The events that ran there and then show who allocated, and the
instant of the free shows the purpose: an allocation of a forward pass that the backward pass of the same step frees is
an activation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall._native import match_allocations
from whystall.analysis.backward import forward_operator_of
from whystall.analysis.memory_results import HeldMemory, MemoryHolder, MemoryKind
from whystall.analysis.modules import ModulePlaces
from whystall.analysis.operators import OperatorTree
from whystall.analysis.origins import function_of
from whystall.analysis.phases import phase_of_operators
from whystall.trace.link import rows_of
from whystall.trace.lookup import last_row_before
from whystall.trace.model import Trace

__all__ = ["Holding", "Places", "held_at_peak", "places_of"]

Rows = NDArray[np.int64]

_KINDS: Final[tuple[MemoryKind, ...]] = get_args(MemoryKind)
_NUMBER: Final = {kind: number for number, kind in enumerate(_KINDS)}
_FORWARD, _BACKWARD, _OPTIMIZER, _NO_PHASE = 0, 1, 2, -1
_MOST_HOLDERS: Final = 20
_MOST_LOST: Final = 0.01  # of the allocations: if more have no end, the holders are unknown
_NUMBERS: Final = re.compile(r"_\d+(?=/|$)")
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Places:
    """Lookup tables for memory events: operators with their modules, and the phase from each instant on."""

    trace: Trace
    tree: OperatorTree
    modules: ModulePlaces
    forward_of: NDArray[np.int32]
    begins: Rows
    phase: Rows
    run: Rows
    """The number of the stretch of one phase at each instant."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory held at the peak, or the reason why it is unknown."""

    held: list[HeldMemory]
    holders: list[MemoryHolder]
    omitted: int
    unknown_because: str | None


def places_of(trace: Trace, tree: OperatorTree, modules: ModulePlaces) -> Places:
    """The lookup tables for a trace's memory events; phases are those of the threads that train."""
    phase = phase_of_operators(trace, tree) if len(trace.operators) else np.zeros(0, np.int64)
    thread = trace.operators["thread"].to_numpy()
    training = np.unique(thread[(phase == _BACKWARD) | (phase == _OPTIMIZER)])
    if len(trace.steps):
        training = np.append(training, trace.steps["thread"].to_numpy())
    elif len(thread):
        training = np.append(training, np.bincount(np.maximum(thread, 0)).argmax())
    chosen = np.isin(thread, training) & np.isin(phase, (_FORWARD, _BACKWARD, _OPTIMIZER))
    told = phase[chosen]
    changes = np.append(False, told[1:] != told[:-1]) if len(told) else np.zeros(0, np.bool_)
    return Places(
        trace=trace,
        tree=tree,
        modules=modules,
        forward_of=forward_operator_of(trace, tree),
        begins=trace.operators["ts_ns"].to_numpy()[chosen],
        phase=told,
        run=np.cumsum(changes),
    )


def held_at_peak(events: pl.DataFrame, peak: int, places: Places) -> Holding:
    """The holders of memory right after the event in row ``peak`` of one allocator's ``events``."""
    size, address = events["bytes"], events["address"]
    if size.null_count() or address.null_count():
        return Holding([], [], 0, "the memory events have no sizes or addresses")
    signed = size.to_numpy()
    move = np.sign(signed).astype(np.int8)
    move[move < 0] = 2
    begin, end, _, lost = match_allocations(move, address.to_numpy().astype(np.int64, copy=False))
    if lost > _MOST_LOST * max(len(begin), 1):
        return Holding([], [], 0, "addresses were handed out again before they were given back: events are missing")
    alive = (begin <= peak) & (end > peak)
    begin, end = begin[alive], end[alive]
    held = signed[begin]
    before = int(events["total_allocated"][peak]) - int(held.sum())
    if before < 0:
        return Holding([], [], 0, "more was allocated in the record than the totals say: events are missing")
    kind = _kinds(events["ts_ns"].to_numpy(), begin, end, places)
    rows = _holders(events, begin, kind, held, places)
    return Holding(
        held=list(_by_kind(kind, held, before)),
        holders=rows[:_MOST_HOLDERS],
        omitted=max(len(rows) - _MOST_HOLDERS, 0),
        unknown_because=None if rows else "nothing of what was held was allocated in the record",
    )


# --- purposes ---------------------------------------------------------------------------------------------------------


def _kinds(at: Rows, begin: Rows, end: Rows, places: Places) -> Rows:
    """The purpose of each allocation, from the phases of its allocation and its free."""
    born = at[begin]
    dies = np.append(at, _NEVER)[np.minimum(end, len(at))]
    ends = dies != _NEVER
    (made, made_run), (freed, freed_run) = _phase_at(born, places), _phase_at(np.where(ends, dies, born), places)
    same_step = _step_at(born, places) == _step_at(np.where(ends, dies, born), places)
    if not len(places.trace.steps):
        same_step = freed_run == _next_run(made_run, _BACKWARD, places)
    optimizer = _next_run(made_run, _OPTIMIZER, places)
    sees_optimizer = (optimizer >= 0) & (~ends | (freed_run >= optimizer))
    rules: list[tuple[NDArray[np.bool_], MemoryKind]] = [
        (ends & (made == _FORWARD) & (freed == _BACKWARD) & same_step, "activations"),
        (ends & (made != _NO_PHASE) & (made_run == freed_run), "temporaries"),
        ((made == _BACKWARD) & sees_optimizer, "gradients"),
        ((made == _OPTIMIZER) & (~ends | (freed_run != made_run)), "optimizer state"),
    ]
    told = [np.full(len(born), _NUMBER[kind], np.int64) for _, kind in rules]
    return np.select([rule for rule, _ in rules], told, _NUMBER["unknown"])


def _phase_at(times: Rows, places: Places) -> tuple[Rows, Rows]:
    """The phase at each instant and the number of its stretch; -1 before the first operator."""
    row = np.searchsorted(places.begins, times, side="right") - 1
    if not len(places.begins):
        return np.full(len(times), _NO_PHASE), np.full(len(times), -1)
    known = row >= 0
    return (
        np.where(known, places.phase[np.maximum(row, 0)], _NO_PHASE),
        np.where(known, places.run[np.maximum(row, 0)], -1),
    )


def _step_at(times: Rows, places: Places) -> Rows:
    """The number of the step at each instant: the time after a step until the next one belongs to it."""
    return np.searchsorted(places.trace.steps["ts_ns"].to_numpy(), times, side="right")


def _next_run(run: Rows, phase: int, places: Places) -> Rows:
    """The first stretch of a phase after each stretch, -1 where none follows."""
    stretches = np.unique(places.run[places.phase == phase])
    place = np.searchsorted(stretches, run, side="right")
    return np.append(stretches, -1)[place]


def _by_kind(kind: Rows, held: Rows, before: int) -> Iterator[HeldMemory]:
    sums = np.zeros(len(_KINDS), np.int64)
    np.add.at(sums, kind, held)
    counts = np.bincount(kind, minlength=len(_KINDS))
    sums[_NUMBER["allocated before the record"]] = before
    for number in np.argsort(-sums, kind="stable").tolist():
        if sums[number]:
            yield HeldMemory(kind=_KINDS[number], bytes=int(sums[number]), count=int(counts[number]))


# --- callers ----------------------------------------------------------------------------------------------------------


def _holders(events: pl.DataFrame, begin: Rows, kind: Rows, held: Rows, places: Places) -> list[MemoryHolder]:
    """The allocations by their purpose and their place, the most bytes first."""
    named = _Names(places)
    asked = zip(kind.tolist(), *_asked(events, begin, places), strict=True)
    keys = [(one, named.module(path), named.function(frame), named.operator(row)) for one, path, frame, row in asked]
    sums: dict[tuple[int, str | None, str | None, str | None], list[int]] = {}
    for key, n_bytes in zip(keys, held.tolist(), strict=True):
        total = sums.setdefault(key, [0, 0])
        total[0] += n_bytes
        total[1] += 1
    rows = [
        MemoryHolder(kind=_KINDS[one], module=module, function=function, operator=name, bytes=total, count=count)
        for (one, module, function, name), (total, count) in sums.items()
    ]
    return sorted(rows, key=_order)


def _order(row: MemoryHolder) -> tuple[int, str, str, str, str]:
    return (-row.bytes, row.kind, row.module or "", row.function or "", row.operator or "")


def _asked(events: pl.DataFrame, begin: Rows, places: Places) -> tuple[list[int], list[int], list[int]]:
    """The module's path, Python frame and operator of each allocation, -1 where there is none.

    A backward operator's are those of the forward operator that it belongs to.
    """
    trace, modules = places.trace, places.modules
    thread, at = events["thread"].to_numpy()[begin].astype(np.int64), events["ts_ns"].to_numpy()[begin]
    operator = _innermost(trace.operators, thread, at)
    frame = _innermost(trace.python_functions, thread, at)
    path = np.full(len(begin), -1)
    if len(trace.operators):
        inside = np.maximum(operator, 0)
        forward = np.where(operator >= 0, places.forward_of[inside], -1)
        frame = np.where(forward >= 0, rows_of(trace.operators["frame"])[np.maximum(forward, 0)], frame)
        path = np.where(operator >= 0, modules.path[inside], -1)
    paths = np.append(modules.modules.path_of, -1)
    path = np.where(path >= 0, path, paths[np.where(frame >= 0, frame, len(paths) - 1)])
    return path.tolist(), frame.tolist(), operator.tolist()


def _innermost(table: pl.DataFrame, thread: Rows, at: Rows) -> Rows:
    """The innermost event of a table of nested ones that runs at each instant on its thread, else -1."""
    if table.is_empty():
        return np.full(len(at), -1)
    start = table["ts_ns"].to_numpy()
    ends = start + table["duration_ns"].to_numpy()
    parent = rows_of(table["parent"])
    row = last_row_before(thread, at, table["thread"].to_numpy().astype(np.int64), start)
    while (over := (row >= 0) & (ends[np.maximum(row, 0)] < at)).any():
        row = np.where(over, parent[np.maximum(row, 0)], row)
    return row


class _Names:
    """Names of modules, functions and operators by row, each looked up once."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._functions: dict[int, str | None] = {}
        self._operators: dict[int, str | None] = {}

    def module(self, path: int) -> str | None:
        """A module's path by classes: without the numbers of instances, so that repeated blocks are one."""
        return _NUMBERS.sub("", self._places.modules.modules.paths[path]) if path >= 0 else None

    def function(self, frame: int) -> str | None:
        """The user's function around a frame."""
        if frame not in self._functions:
            self._functions[frame] = function_of(self._places.trace, frame)
        return self._functions[frame]

    def operator(self, row: int) -> str | None:
        """The outermost of PyTorch's operators that are nested around the allocating one."""
        if row not in self._operators:
            tree, at = self._places.tree, row
            while at >= 0 and (above := int(tree.parent[at])) >= 0 and self._name(above).startswith("aten::"):
                at = above
            self._operators[row] = self._name(at) if at >= 0 else None
        return self._operators[row]

    def _name(self, row: int) -> str:
        return self._places.tree.names[int(self._places.tree.name_of[row])]
