"""Why the device stood idle: each gap is split by the reason why the next event waited.

Before event ``k`` with launch call [l0, l1], a gap [g0, g1) is *host late* when the call started at or after g0 or was
still running then, *queued but waiting* when it had ended, *unknown* when the launch is not in the trace. Within "host
late" every instant up to l1 belongs to the launching thread's activity; from l1 on the launch is on its way. A launch
of a graph brings many events: the gaps between them are the device's own, however long they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.host_states import HostEvents, HostState, overlay, state_at
from whystall.analysis.intervals import Gaps, Spans, Timeline, merged_times

IDLE_PARTS: Final = (
    "idle_input",
    "idle_sync",
    "idle_python",
    "idle_dispatch",
    "idle_launch",
    "idle_allocator",
    "idle_gc",
    "idle_dependency",
    "idle_gap",
    "idle_unknown",
)
_PART_OF_STATE: Final = {
    HostState.INPUT: "idle_input",
    HostState.SYNC: "idle_sync",
    HostState.PYTHON: "idle_python",
    HostState.DISPATCH: "idle_dispatch",
    HostState.COMMUNICATION: "idle_dispatch",
    HostState.LAUNCH: "idle_launch",
    HostState.ALLOCATOR: "idle_allocator",
    HostState.GC: "idle_gc",
    HostState.NONE: "idle_unknown",
}
# Number of launching threads, the busiest, that are searched for waits on each other.
_MOST_WAITED_FOR: Final = 16
# A launch reaches an idle device within a few microseconds; a queued event follows the one before it as quickly. A
# longer gap has another cause. (traces.md: "gap < 10 us")
SHORT_NS: Final = 10_000


@dataclass(frozen=True, slots=True)
class IdleSplit:
    """Nanoseconds of idle time per gap (rows) and part (columns, `IDLE_PARTS`), and per gap its kind."""

    parts: NDArray[np.int64]
    host_late: NDArray[np.bool_]
    queued: NDArray[np.bool_]
    silent_host_ns: int
    """Part of ``idle_unknown`` in which the launching thread had no event recorded before or after."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Per device event its launch call: whether it is known, its start, end, thread, and its first event's start."""

    known: NDArray[np.bool_]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    thread: NDArray[np.int32]
    first: NDArray[np.int64]

    def only(self, events: NDArray[np.intp] | NDArray[np.bool_]) -> Launches:
        """Those of some events."""
        return Launches(*(getattr(self, field.name)[events] for field in fields(self)))

    def late(self, gaps: Gaps) -> NDArray[np.bool_]:
        """Per gap whether its next event's launch began in it, or was still under way as it began."""
        event = gaps.next_event
        return self.known[event] & ((self.end[event] > gaps.begin) | (self.start[event] >= gaps.begin))

    def within_one(self, gaps: Gaps) -> NDArray[np.bool_]:
        """Per gap whether its next event's launch brought one before it."""
        return self.known[gaps.next_event] & (self.first[gaps.next_event] < gaps.begin)


def split_idle(gaps: Gaps, launches: Launches, host: HostEvents) -> IdleSplit:
    """Every nanosecond of every gap attributed to exactly one part."""
    event = gaps.next_event
    length = gaps.end - gaps.begin
    known = launches.known[event]
    host_late, inside = launches.late(gaps), launches.within_one(gaps)
    late, queued = host_late & ~inside, known & (~host_late | inside)
    parts = np.zeros((len(length), len(IDLE_PARTS)), np.int64)
    column = {part: index for index, part in enumerate(IDLE_PARTS)}
    parts[~known, column["idle_unknown"]] = length[~known]
    short = inside | (length < SHORT_NS)
    parts[queued & short, column["idle_gap"]] = length[queued & short]
    parts[queued & ~short, column["idle_dependency"]] = length[queued & ~short]
    called = np.clip(launches.end[event], gaps.begin, gaps.end)
    arriving = np.where(late, gaps.end - called, 0)
    parts[:, column["idle_launch"]] += np.minimum(arriving, SHORT_NS)
    parts[:, column["idle_dependency"]] += np.maximum(arriving - SHORT_NS, 0)
    until = np.where(late, called, gaps.begin)
    silent = _split_host_time(gaps.begin, until, launches.thread[event], launches.thread[launches.known], host, parts)
    return IdleSplit(parts, host_late, known & ~host_late, silent)


def _split_host_time(
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    thread: NDArray[np.int32],
    launching: NDArray[np.int32],
    host: HostEvents,
    parts: NDArray[np.int64],
) -> int:
    """Adds the time of each window to the part of the thread's state; returns the unknown rest."""
    column = {part: index for index, part in enumerate(IDLE_PARTS)}
    waiting = np.flatnonzero(end > begin)
    waiting = waiting[np.argsort(thread[waiting], kind="stable")]
    silent = 0
    thread_waiting = thread[waiting]
    for member, timeline in launching_timelines(host, launching):
        rows = waiting[slice(*np.searchsorted(thread_waiting, (member, member + 1)))]
        if not len(rows):
            continue
        left = end[rows] - begin[rows]
        present = np.bincount(timeline.states, minlength=len(HostState)) > 0
        for state, part in _PART_OF_STATE.items():
            if state == HostState.NONE or not present[state]:
                continue
            spent = timeline.cumulative(_only(state)).within(begin[rows], end[rows])
            parts[rows, column[part]] += spent
            left -= spent
        # Between its events a thread runs code that records none: Python, unless it has not begun or has ended.
        within = _within(timeline, begin[rows], end[rows]) if host.tells_python else np.zeros(len(rows), np.int64)
        parts[rows, column["idle_python"]] += np.minimum(left, within)
        parts[rows, column["idle_unknown"]] += left - np.minimum(left, within)
        silent += int((left - np.minimum(left, within)).sum())
    return silent


def idle_spans(gaps: Gaps, launches: Launches, host: HostEvents) -> Spans:
    """The stretches of the gaps, by begin, each with its part (a place in `IDLE_PARTS`): the terms of `split_idle`."""
    column = {part: index for index, part in enumerate(IDLE_PARTS)}
    event, begin, end = gaps.next_event, gaps.begin, gaps.end
    known = launches.known[event]
    inside = launches.within_one(gaps)
    host_late = launches.late(gaps) & ~inside
    called = np.where(host_late, np.clip(launches.end[event], begin, end), begin)
    arrived = np.where(host_late, np.minimum(called + SHORT_NS, end), begin)
    short = ~host_late & (inside | (end - begin < SHORT_NS))
    rest = np.select([~known, short], [column["idle_unknown"], column["idle_gap"]], column["idle_dependency"])
    pieces = [
        Spans(called, arrived, np.full(len(event), column["idle_launch"], np.uint8)),
        Spans(arrived, end, rest.astype(np.uint8)),
        *_host_spans(begin, called, launches.thread[event], launches.thread[launches.known], host),
    ]
    return Spans.joined(pieces)


def _host_spans(
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    thread: NDArray[np.int32],
    launching: NDArray[np.int32],
    host: HostEvents,
) -> Iterator[Spans]:
    """The states of each window's thread, instant by instant."""
    column = {part: index for index, part in enumerate(IDLE_PARTS)}
    part_of = np.array([column[_PART_OF_STATE[state]] for state in HostState], np.uint8)
    for member, timeline in launching_timelines(host, launching):
        rows = np.flatnonzero((thread == member) & (end > begin))
        if not len(rows):
            continue
        times = merged_times(timeline.times, begin[rows], end[rows])
        at = times[:-1]
        window = np.searchsorted(begin[rows], at, side="right") - 1
        inside = (window >= 0) & (at < end[rows][window])
        state = state_at(timeline, at)
        recorded = (at >= timeline.times[0]) & (at < timeline.times[-1]) & host.tells_python
        part = np.where((state == HostState.NONE) & recorded, column["idle_python"], part_of[state])
        yield Spans(at[inside], times[1:][inside], part[inside].astype(np.uint8))


def _only(state: HostState) -> NDArray[np.bool_]:
    counted = np.zeros(len(HostState), np.bool_)
    counted[state] = True
    return counted


def _within(timeline: Timeline, begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The part of each window between the thread's first and last event that is in no state."""
    return timeline.cumulative(_only(HostState.NONE)).within(begin, end)


def launching_timelines(host: HostEvents, threads: NDArray[np.int32]) -> Iterator[tuple[int, Timeline]]:
    """Each launching thread with its activity, or that of the thread it waited for; the busiest come first."""
    counts = np.bincount(threads) if len(threads) else np.zeros(0, np.int64)
    busiest = [int(thread) for thread in np.argsort(-counts, kind="stable") if counts[thread] > 0]
    own = {thread: host.timeline(thread) for thread in busiest[:_MOST_WAITED_FOR]}
    for thread, timeline in own.items():
        combined = timeline
        for other, seen in own.items():
            if other != thread:
                combined = overlay(combined, seen)
        yield thread, combined
    for thread in busiest[_MOST_WAITED_FOR:]:
        yield thread, host.timeline(thread)
