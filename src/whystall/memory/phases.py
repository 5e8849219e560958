"""Which part of a training step an allocator's events belong to, and where steps begin."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.snapshot import Action, Annotation, DeviceRecord
from whystall.memory.stacks import Mark, Stacks

__all__ = ["Phase", "Phases", "find_phases", "with_steps_of"]

_STEP: Final = re.compile(r"^ProfilerStep#\d+$")
_OPTIMIZER_STEP: Final = re.compile(r"^Optimizer\.step#")
_LEAST_STEPS: Final = 2
_MOST_STACKLESS: Final = 0.9  # of the allocations: with more, frames may not have been recorded


class Phase(IntEnum):
    """A part of a step."""

    UNKNOWN = 0
    SETUP = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4


@dataclass(frozen=True, slots=True)
class Phases:
    """``at`` is the phase of each event, ``steps`` the rows at which steps begin, ``known_by`` their evidence."""

    at: NDArray[np.int8]
    steps: NDArray[np.int64]
    known_by: str | None
    stackless_is_backward: bool

    def starts(self, phase: Phase) -> NDArray[np.int64]:
        """The rows at which the phase begins."""
        inside = self.at == phase
        return np.flatnonzero(inside & ~np.append(False, inside[:-1]))


def find_phases(record: DeviceRecord, stacks: Stacks) -> Phases:
    """The phases of a device's events, by the marks on the stacks of its allocations and frees.

    On CUDA the backward pass runs on a thread of autograd's own, which has no Python frames. If frames were recorded,
    and those of a forward pass are among them, events without frames count as the backward pass. The loss, between a
    forward pass and the backward pass after it, belongs to the forward pass.
    """
    events = record.events
    tells = _tells(record)
    allocs = events.action == Action.ALLOC
    stackless = int(np.count_nonzero(allocs & (events.stack < 0)))
    seen = np.zeros(len(stacks.marks) + 1, np.bool_)
    seen[events.stack[tells]] = True
    forward = bool((stacks.marks[seen[:-1]] & (Mark.FORWARD | Mark.OPERATION)).any())
    engine = forward and stackless < _MOST_STACKLESS * int(np.count_nonzero(allocs))
    by_stack = _by_stack(stacks, engine=engine)  # the last entry is for events without a stack
    latest = np.arange(len(tells), dtype=np.int32)
    latest[~tells] = -1
    if len(latest):
        np.maximum.accumulate(latest, out=latest)
    filled = by_stack[events.stack[latest]] if len(latest) else np.zeros(0, np.int8)
    filled[latest < 0] = Phase.UNKNOWN
    filled = _drop_returns(filled, stacks.marks_of(events.stack[latest]), latest) if len(latest) else filled
    filled = _add_losses(filled, ran_out=bool((events.action == Action.OOM).any()))
    steps, known_by = _steps(record, filled)
    return Phases(filled, steps, known_by, engine and stackless > 0)


def with_steps_of(devices: Iterable[tuple[DeviceRecord, Phases]], record: DeviceRecord, own: Phases) -> Phases:
    """The phases of pinned host memory with the steps of the first device that has any, by their times.

    Nothing marks steps on the host's record, and the threads that fill it make no pass.
    """
    time = record.events.time_us
    if time is None:
        return own
    for device, phases in devices:
        if phases.known_by is not None and device.events.time_us is not None:
            rows = np.searchsorted(time, device.events.time_us[phases.steps])
            return replace(own, steps=rows, known_by=f"{phases.known_by} of device {device.device}")
    return own


def _by_stack(stacks: Stacks, *, engine: bool) -> NDArray[np.int8]:
    marks = stacks.marks
    phases = np.select(
        [
            (marks & Mark.OPTIMIZER) > 0,
            (marks & (Mark.BACKWARD | Mark.GRADIENT | Mark.RECOMPUTE)) > 0,
            (marks & (Mark.FORWARD | Mark.OPERATION)) > 0,
            (marks & Mark.PARAMETERS) > 0,
        ],
        [Phase.OPTIMIZER, Phase.BACKWARD, Phase.FORWARD, Phase.SETUP],
        Phase.UNKNOWN,
    )
    return np.append(phases, Phase.BACKWARD if engine else Phase.UNKNOWN).astype(np.int8)


def _drop_returns(at: NDArray[np.int8], marks: NDArray[np.int64], latest: NDArray[np.int32]) -> NDArray[np.int8]:
    """The phases, without one for events in `backward` after autograd's engine has ended.

    The end of the engine is visible only if the engine's own calls are.
    """
    in_engine = (marks & Mark.ENGINE) > 0
    in_engine |= (at == Phase.BACKWARD) & (marks == 0)  # autograd's thread without Python frames
    calling = (at == Phase.BACKWARD) & ~in_engine & ((marks & Mark.RECOMPUTE) == 0)
    if not in_engine.any() or not calling.any():
        return at
    place = np.arange(len(at))
    last_engine = np.maximum.accumulate(np.where(in_engine, place, -1))
    last_other = np.maximum.accumulate(np.where(at != Phase.BACKWARD, place, -1))
    returned = calling & (last_engine > last_other) & (latest >= 0)
    # The engine may go on: an event is after it only if no later call of it follows in the same pass.
    next_engine = _following(np.where(in_engine, place, len(at)))
    next_other = _following(np.where(at != Phase.BACKWARD, place, len(at)))
    return np.where(returned & (next_engine >= next_other), np.int8(Phase.UNKNOWN), at)


def _following(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The least of each row and those after it."""
    found: NDArray[np.int64] = np.minimum.accumulate(rows[::-1])[::-1]
    return found


def _add_losses(at: NDArray[np.int8], *, ran_out: bool) -> NDArray[np.int8]:
    """The phases, with events between a forward pass and more of it or the backward pass as part of the forward pass.

    If memory ran out, the end of the record counts as such: the last request belongs to the pass under way.
    """
    known = at != Phase.UNKNOWN
    if not known.any():
        return at
    place = np.arange(len(at))
    before = at[np.maximum(np.maximum.accumulate(np.where(known, place, -1)), 0)]
    following = _following(np.where(known, place, len(at)))
    after = np.append(at, np.int8(Phase.FORWARD if ran_out else Phase.UNKNOWN))[following]
    between = ~known & (before == Phase.FORWARD) & ((after == Phase.BACKWARD) | (after == Phase.FORWARD))
    return np.where(between, np.int8(Phase.FORWARD), at)


def _tells(record: DeviceRecord) -> NDArray[np.bool_]:
    """Events whose stacks show a phase: allocations, and frees with stacks of their own.

    Where a record keeps the stacks of allocations alone, each free repeats that of its allocation.
    """
    events = record.events
    allocs, frees = events.action == Action.ALLOC, events.action == Action.FREE_REQUESTED
    most = int(events.stack.max(initial=-1)) + 2
    of_frees, of_allocs = np.zeros(most, np.bool_), np.zeros(most, np.bool_)
    of_frees[events.stack[frees]] = True
    of_allocs[events.stack[allocs]] = True
    own = bool((of_frees & ~of_allocs)[:-1].any())
    tells: NDArray[np.bool_] = allocs | frees if own else allocs
    return tells


def _steps(record: DeviceRecord, at: NDArray[np.int8]) -> tuple[NDArray[np.int64], str | None]:
    """Where steps begin: as the program marked them; else with the forward pass that follows a backward pass."""
    for pattern, known_by in ((_STEP, "ProfilerStep#"), (_OPTIMIZER_STEP, "Optimizer.step#")):
        rows = _marked(record, pattern)
        if len(rows) >= _LEAST_STEPS:
            return rows, known_by
    inside = np.flatnonzero((at == Phase.FORWARD) | (at == Phase.BACKWARD))
    forward = at[inside] == Phase.FORWARD
    rows = inside[forward & ~np.append(False, forward[:-1])] if len(inside) else inside
    if len(rows) >= _LEAST_STEPS:
        return rows, "forward passes that follow a backward pass"
    return np.zeros(0, np.int64), None


def _marked(record: DeviceRecord, pattern: re.Pattern[str]) -> NDArray[np.int64]:
    """The rows at which spans of a name begin."""
    time = record.events.time_us
    chosen: list[Annotation] = [span for span in record.annotations if pattern.match(span.name)]
    if time is None or not chosen:
        return np.zeros(0, np.int64)
    rows = np.unique(np.searchsorted(time, [span.start_us for span in chosen]))
    return rows[rows < len(time)]
