"""Calls in which the host waits for the device: for all launches, for their own copy, for room in a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.replay.device import DeviceNodes, StreamEvents
from whystall.replay.graph import LATENCY_NS, Times
from whystall.replay.rank import DrawnRank
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.vocabulary.runtime_calls import is_call

# A stream takes some hundreds of launches ahead of the device, then the next one waits for room (1,024 by default;
# 1,021 kernels on a V100, 1,022 on an A100: other entries take room as well; reference: replay.md, edge j).
LEAST_QUEUE: Final = 256
_QUEUE: Final = 1_022
"""Launches of CUDA that a stream takes ahead of the device."""
# For the host's lead one launch of several is as good as all.
_EVERY: Final = 8
# A queue counts as full at this share of its greatest length.
_AS_LONG: Final = 0.98
# That is a limit only if launches keep coming while the queue stays this long: fewer may be where the lead ended.
_FEWEST_AT_LIMIT: Final = 32
# A few long launches suffice, for any length of the queue (events take room as well): each took as long as the device's
# concurrent event (a collective), and returned when that ended.
_FEWEST_LONG: Final = 4
_TIMES_LONG: Final = 100
_MOST_ENDED: Final = 2
# Duration of a launch that found room, if a recording shows none.
_USUAL_LAUNCH_NS: Final = 5_000
_TIMES_USUAL: Final = 2
# Longest time that a call spends before it waits for the copy it started.
_CALL_NS: Final = 5_000
# A graph's launch that found room still has to submit the whole graph: on an H200 it returned 11 to 18 us after an
# event.
_GRAPH_NS: Final = 25_000


@dataclass(frozen=True, slots=True)
class WaitingCalls:
    """Calls that waited for a device, in order: the instants of the call, and the begin and end of the wait.

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


def makes_room(rank: DrawnRank, nodes: DeviceNodes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs of events of a stream (places): the launch of the second finds room once the first has ended.

    Some launches of each of CUDA's streams, unless the recording shows a longer queue. In a recording whose host was
    never so far ahead nothing waits for them; without its waits it might be.
    """
    calls = rank.trace.runtime_calls
    if not matching(calls["name"], lambda name: name.startswith("cu") and is_call(name, "launch")).any():
        return _NO_PLACES, _NO_PLACES
    launch = rows_of(rank.trace.device_events["launch"])[nodes.events.row]
    found = [(_NO_PLACES, _NO_PLACES)]
    for stream in nodes.streams.values():
        own = stream.place[launch[stream.place] >= 0]
        # A graph's launch is one entry: its first event stands for the call, its last one for its end.
        changes = np.flatnonzero(np.diff(launch[own]))
        first, last = own[np.append(0, changes + 1)[: len(own)]], own[np.append(changes, len(own) - 1)[: len(own)]]
        before, after = last[:-_QUEUE], first[_QUEUE:]
        if (nodes.events.end[before] <= nodes.events.launches.end[after]).all():
            found.append((before[::_EVERY], after[::_EVERY]))
    before, after = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return before, after


_NO_PLACES: Final = np.zeros(0, np.intp)
_NEVER: Final = int(np.iinfo(np.int64).min)
_Blocked = tuple[NDArray[Any], Times, Times, bool]


def _blocked_copies(
    rank: DrawnRank, nodes: DeviceNodes, launch: NDArray[np.int32], start: Times, end: Times
) -> _Blocked:
    """Calls that return after their own copy has ended waited for it, under any name."""
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
    """Launches that waited for room in the queue of their stream, or in one that all streams of the device share.

    They found it at its longest, took longer than launches that found room, and returned as an event ended. The
    recording shows which of the two queues it is: the one that explains more of the waiting. Launches that waited for
    their own copy (``copied``) are not among them: their delay is explained.
    """
    streams = list(nodes.streams.values())
    kinds = [[[stream] for stream in streams], *([[streams]] if len(streams) > 1 else [])]
    found = [_stuck_in(queues, rank, nodes, launch, start, end, copied) for queues in kinds]
    calls, last = max(found, key=lambda one: int((end - start)[one[0]].sum()))
    return calls, last, start[calls] + _CALL_NS, False


def _stuck_in(
    queues: Sequence[Sequence[StreamEvents]],
    rank: DrawnRank,
    nodes: DeviceNodes,
    launch: NDArray[np.int32],
    start: Times,
    end: Times,
    copied: NDArray[np.intp],
) -> tuple[NDArray[np.intp], Times]:
    """The calls that waited for room in some queues, each of some streams, and when events ended that made room."""
    found = []
    for streams in queues:
        place = np.concatenate([stream.place for stream in streams])
        own = launch[place]
        calls = np.setdiff1d(own[own >= 0], copied).astype(np.intp)
        if len(calls):
            found.append(_stuck_on(rank, np.sort(nodes.events.end[place]), streams, calls, start, end))
    calls = np.concatenate([np.zeros(0, np.intp), *(one for one, _ in found)])
    return calls, np.concatenate([np.zeros(0, np.int64), *(last for _, last in found)])


def _stuck_on(
    rank: DrawnRank, ended: Times, streams: Sequence[StreamEvents], calls: NDArray[np.intp], start: Times, end: Times
) -> tuple[NDArray[np.intp], Times]:
    """The calls that waited for room in one queue, whose events ended at some instants."""
    taken = end[calls] - start[calls]
    done = np.searchsorted(ended, end[calls], side="right")
    # An event whose launch was not recorded was launched before the recording, as those before it on its stream.
    asked = sum(np.searchsorted(stream.launched, start[calls], side="left") for stream in streams)
    queued = asked - done
    last = ended[np.maximum(done - 1, 0)]
    of_graphs = matching(rank.trace.runtime_calls["name"], lambda name: is_call(name, "graph"))[calls]
    late = end[calls] - last <= np.where(of_graphs, _GRAPH_NS, LATENCY_NS)
    full = queued >= max(_AS_LONG * int(queued.max()), LEAST_QUEUE)
    room = taken[queued < _AS_LONG * _AS_LONG * int(queued.max())]
    usual = float(np.median(room)) if len(room) else _USUAL_LAUNCH_NS
    stuck = full & late & (done > 0) & (taken >= _TIMES_USUAL * usual)
    if int(stuck.sum()) < _FEWEST_AT_LIMIT:
        stuck[:] = False
    one = done - np.searchsorted(ended, start[calls], side="right") <= _MOST_ENDED
    long = (queued >= LEAST_QUEUE) & late & (done > 0) & one & (taken >= _TIMES_LONG * usual)
    if int(long.sum()) >= _FEWEST_LONG:
        stuck |= long
    return calls[stuck], last[stuck]
