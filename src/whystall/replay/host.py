"""Host threads as chains of nodes: one per stretch with one innermost event.

The stretches in which a thread only waited are cut out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from whystall._native import thread_spans
from whystall.analysis.host_states import INHERITED_STATES, HostEvents, HostState
from whystall.analysis.intervals import merged_times
from whystall.replay.graph import Draft, EdgeKind, NodeKind, Times
from whystall.replay.windows import Window

SOFT_STATES = (HostState.NONE, HostState.PYTHON)
"""States in which a thread may wait for another one."""
# Shorter stretches are the pause between two events, not a wait for another thread.
_LEAST_WAIT_NS = 1_000
# A thread that polls sees the end of its wait within this time, and polls for at least ten times as long.
_POLL_NS = 20_000
_LEAST_POLL_NS = 200_000


@dataclass(frozen=True, slots=True)
class Spans:
    """A thread's time in stretches; ``event`` is -1 between events."""

    begin: Times
    end: Times
    state: NDArray[np.uint8]
    event: NDArray[np.int64]


@dataclass(slots=True)
class Waits:
    """Stretches in which a thread waited, and the nodes it waited for (filled in once these are drawn)."""

    begin: list[Times] = field(default_factory=list)
    end: list[Times] = field(default_factory=list)

    def add(self, begin: Times, end: Times) -> None:
        """Adds waits."""
        self.begin.append(begin)
        self.end.append(end)

    def joined(self) -> tuple[Times, Times]:
        """All begins and ends."""
        none = np.zeros(0, np.int64)
        return np.concatenate([none, *self.begin]), np.concatenate([none, *self.end])


@dataclass(frozen=True, slots=True)
class HostLane:
    """A drawn thread: its nodes in order of time."""

    node: NDArray[np.int64]
    exit: NDArray[np.int64]
    """The nodes that others depend on: the node itself, or the exit of a collective."""
    begin: Times
    end: Times
    event: NDArray[np.int64]

    def ending_by(self, instants: Times) -> NDArray[np.int64]:
        """The last node that had ended at each instant, or -1."""
        return self._at(np.searchsorted(self.end, instants, side="right") - 1, self.exit)

    def beginning_at(self, instants: Times) -> NDArray[np.int64]:
        """The first node that begins at or after each instant, or -1."""
        return self._at(np.searchsorted(self.begin, instants, side="left"), self.node)

    def _at(self, place: NDArray[np.intp], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(nodes):
            return np.full(len(place), -1, np.int64)
        inside = (place >= 0) & (place < len(nodes))
        return np.where(inside, nodes[np.clip(place, 0, len(nodes) - 1)], -1)


def spans_of(host: HostEvents, thread: int, window: Window | None) -> Spans:
    """The stretches of a thread (of its events that begin in a window)."""
    mine = host.events_of(thread).astype(np.int64)
    if window is not None:
        mine = mine[(host.start[mine] >= window[0]) & (host.start[mine] < window[1])]
    order = np.arange(len(mine), dtype=np.uint32)
    times, states, events = thread_spans(
        host.start[mine], host.end[mine], order, host.state[mine], np.ascontiguousarray(INHERITED_STATES)
    )
    event = np.where(events >= 0, mine[np.maximum(events, 0)], -1) if len(mine) else events
    return Spans(times[:-1], times[1:], states, event.astype(np.int64))


def handovers(waiting: Spans, working: Spans, *, in_collectives: bool) -> tuple[Times, Times]:
    """Where one thread waits for another: begin and end of each wait.

    While the waiting thread is in Python or in nothing (or in a collective, when the other one communicates for it),
    the time from the other's first event in that stretch to its last is a wait.
    """
    states = (*SOFT_STATES, HostState.COMMUNICATION) if in_collectives else SOFT_STATES
    soft = np.flatnonzero(np.isin(waiting.state, states) & (waiting.end - waiting.begin >= _LEAST_WAIT_NS))
    busy = np.flatnonzero(working.event >= 0)
    none = np.zeros(0, np.int64)
    if not len(soft) or not len(busy):
        return none, none
    begin, end = waiting.begin[soft], waiting.end[soft]
    first = np.searchsorted(working.end[busy], begin, side="right")
    last = np.searchsorted(working.begin[busy], end, side="left") - 1
    some = first <= last
    soft_begin = begin[some]
    from_ = np.maximum(working.begin[busy[first[some]]], soft_begin)
    until = np.minimum(working.end[busy[last[some]]], end[some])
    real = until > from_
    return from_[real], until[real]


def polls(spans: Spans, launched: Times, ended: Times) -> tuple[Times, Times, NDArray[np.intp]]:
    """The stretches in which a thread polled the device: begin, end, and the awaited event.

    These are long stretches without an event that end as the last device event launched before them ends. ``launched``
    must be sorted.
    """
    long = np.flatnonzero((spans.event < 0) & (spans.end - spans.begin >= _LEAST_POLL_NS))
    last = np.searchsorted(launched, spans.begin[long], side="right") - 1
    seen = last >= 0
    long, last = long[seen], last[seen]
    late = spans.end[long] - ended[last]
    waited = (late >= 0) & (late <= _POLL_NS) & (ended[last] > spans.begin[long])
    return spans.begin[long[waited]], ended[last[waited]], last[waited]


def draw(
    draft: Draft, name: str, spans: Spans, waits: Waits, cuts: Times, active: Waits | None, *, rank: int
) -> HostLane:
    """Draws a thread. Time between its events is its own while it is ``active`` (``None``: always); else it waits."""
    wait_begin, wait_end = (np.sort(part) for part in waits.joined())
    if not len(spans.begin):
        none = np.zeros(0, np.int64)
        return HostLane(none, none, none, none, none)
    active_begin, active_end = (np.sort(part) for part in (active or Waits()).joined())
    # Only pauses are cut where the thread becomes active: an event stays whole.
    marks = (wait_begin, wait_end, cuts, _in_pauses(active_begin, spans), _in_pauses(active_end, spans))
    times = merged_times(spans.begin, spans.end[-1:], *(_inside(part, spans) for part in marks))
    begin, end = times[:-1], times[1:]
    at = np.searchsorted(spans.begin, begin, side="right") - 1
    own = ~_covered(begin, wait_begin, wait_end)
    if active is not None:
        own &= (spans.event[at] >= 0) | _covered(begin, active_begin, active_end)
    begin, end, state, event = begin[own], end[own], spans.state[at[own]], spans.event[at[own]]
    lane = draft.lane(name)
    node = draft.nodes(begin, end, kind=NodeKind.HOST, lane=lane, rank=rank, state=state, event=event)
    leaves = node.copy()
    talks = np.flatnonzero(state == HostState.COMMUNICATION)
    leaves[talks] = draft.nodes(
        end[talks], end[talks], kind=NodeKind.JOINT, lane=lane, rank=rank, state=state[talks], event=event[talks]
    )
    draft.edges(node[talks], leaves[talks], EdgeKind.PROGRAM)
    draft.edges(leaves[:-1], node[1:], EdgeKind.PROGRAM)
    return HostLane(node, leaves, begin, end, event)


def _covered(instants: Times, begin: Times, end: Times) -> NDArray[np.bool_]:
    """Which instants lie in an interval; begins and ends are sorted separately."""
    begun = np.searchsorted(begin, instants, side="right")
    return np.asarray(begun > np.searchsorted(end, instants, side="right"), np.bool_)


def _in_pauses(instants: Times, spans: Spans) -> Times:
    """Those of the instants at which no event runs."""
    at = np.clip(np.searchsorted(spans.begin, instants, side="right") - 1, 0, max(len(spans.begin) - 1, 0))
    pauses: Times = instants[spans.event[at] < 0]
    return pauses


def _inside(instants: Times, spans: Spans) -> Times:
    inside: Times = instants[(instants > spans.begin[0]) & (instants < spans.end[-1])]
    return inside
