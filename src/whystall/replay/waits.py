"""Calls in which the host waits for the device: for all that was launched, for their own copy, for room in a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.replay.device import DeviceNodes
from whystall.replay.graph import LATENCY_NS, Times
from whystall.replay.rank import DrawnRank
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.vocabulary.runtime_calls import is_call

# A launch that takes this long, or so many times the usual one, waits for room in the queue of launches, which holds
# some hundreds at least (1024 by default; reference: replay.md, edge j).
_STUCK_NS: Final = 50_000
_TIMES_USUAL: Final = 10
_LEAST_QUEUE: Final = 256
# A queue is full again where it is as long as it was when launches waited for room, but for its last entries; what is
# launched then waits if it takes longer than where there was room.
_AS_LONG: Final = 0.98
_TIMES_USUAL_IN_FULL: Final = 2
# What a call does before it waits for the copy it started, at most.
_CALL_NS: Final = 5_000
# A graph's launch that got room still has all of it to hand over: on an H200 it returned 11 to 18 us after an event.
_GRAPH_NS: Final = 25_000


@dataclass(frozen=True, slots=True)
class WaitingCalls:
    """Calls that waited for a device, in order: when they were made, what they waited from and until.

    ``launched_first`` are those that start something and then wait for it; others wait first, or start nothing.
    """

    called: Times
    begin: Times
    end: Times
    launched_first: NDArray[np.bool_]


def waiting_calls(rank: DrawnRank, drawn: dict[int, DeviceNodes]) -> dict[int, WaitingCalls]:
    """Per thread the calls that did not return before something on a device had ended, with the wait in them."""
    calls = rank.trace.runtime_calls
    if calls.is_empty() or not drawn:
        return {}
    start = calls["ts_ns"].to_numpy()
    end = start + calls["duration_ns"].to_numpy()
    thread = calls["thread"].to_numpy()
    if rank.window is not None:
        outside = (start < rank.window[0]) | (start >= rank.window[1])
        thread = np.where(outside, -1, thread)
    waits = np.flatnonzero(matching(calls["name"], lambda name: is_call(name, "sync", "free_that_waits")))
    begin = start.copy()
    until = np.full(len(start), _NEVER)
    launched_first = np.zeros(len(start), np.bool_)
    for nodes in drawn.values():
        for stream in nodes.streams.values():
            place = stream.last_before(start[waits], end[waits])
            until[waits] = np.maximum(
                until[waits], np.where(place >= 0, nodes.events.end[np.maximum(place, 0)], _NEVER)
            )
        launch = rows_of(rank.trace.device_events["launch"])[nodes.events.row]
        copied = _blocked_copies(rank, nodes, launch, start, end)
        for own, ended, since, first in (copied, _stuck_launches(rank, nodes, launch, start, end, copied[0])):
            until[own] = np.maximum(until[own], ended)
            begin[own] = since
            launched_first[own] = first
    begin = np.maximum(begin, start)
    real = np.flatnonzero((until > begin) & (thread >= 0))
    out = {}
    for one in np.unique(thread[real]).tolist():
        mine = real[thread[real] == one]
        out[int(one)] = WaitingCalls(start[mine], begin[mine], until[mine], launched_first[mine])
    return out


_NEVER: Final = int(np.iinfo(np.int64).min)
_Blocked = tuple[NDArray[Any], Times, Times, bool]


def _blocked_copies(
    rank: DrawnRank, nodes: DeviceNodes, launch: NDArray[np.int32], start: Times, end: Times
) -> _Blocked:
    """Calls that return after their own copy has ended waited for it, whatever their name."""
    is_copy = matching(rank.trace.device_events["kind"], lambda kind: kind == "memcpy")[nodes.events.row]
    copies = np.flatnonzero((launch >= 0) & is_copy)
    own = launch[copies]
    blocked = nodes.events.end[copies] <= end[own]
    own, copies = own[blocked].astype(np.intp), copies[blocked]
    since: Times = np.minimum(start[own] + _CALL_NS, nodes.events.start[copies])
    return own, nodes.events.end[copies], since, True


def _stuck_launches(
    rank: DrawnRank, nodes: DeviceNodes, launch: NDArray[np.int32], start: Times, end: Times, copied: NDArray[np.intp]
) -> _Blocked:
    """Launches that took long, returned as some event of the device ended, and had hundreds of events before them.

    Once some are known, the queue is as long as it was then (1,021 on a V100): shorter waits for room are known by
    that. Those that waited for their own copy (``copied``) are not among them: what held them up is known.
    """
    events = nodes.events
    calls = np.setdiff1d(launch[launch >= 0], copied).astype(np.intp)
    if not len(calls):
        return calls, calls, calls, False
    taken = end[calls] - start[calls]
    ended = np.sort(events.end)
    done = np.searchsorted(ended, end[calls], side="right")
    asked = np.searchsorted(np.sort(events.launches.start[events.launches.known]), start[calls], side="left")
    before = asked - done
    last = ended[np.maximum(done - 1, 0)]
    of_graphs = matching(rank.trace.runtime_calls["name"], lambda name: is_call(name, "graph"))[calls]
    late = np.where(of_graphs, _GRAPH_NS, LATENCY_NS)
    could = (done > 0) & (before >= _LEAST_QUEUE) & (end[calls] - last <= late)
    stuck = could & (taken >= min(_STUCK_NS, _TIMES_USUAL * float(np.median(taken))))
    if stuck.any():
        room = float(np.median(before[stuck])) * _AS_LONG
        free = taken[before < room * _AS_LONG]
        usual = float(np.median(free)) if len(free) else _CALL_NS
        stuck |= could & (before >= room) & (taken >= _TIMES_USUAL_IN_FULL * usual)
    return calls[stuck], last[stuck], start[calls[stuck]] + _CALL_NS, False
