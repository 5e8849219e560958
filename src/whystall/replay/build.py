"""From the traces of a run to its dependency graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.communication import communication_records, host_collectives
from whystall.analysis.device import DeviceEvents, devices_of
from whystall.analysis.host_states import HostEvents, HostState, host_events
from whystall.analysis.hosts import backward_threads, training_thread
from whystall.analysis.idle import Launches
from whystall.analysis.kernel_classes import COMMUNICATION, Classified, classify
from whystall.replay import device as devices
from whystall.replay import host as hosts
from whystall.replay.device import DeviceNodes
from whystall.replay.graph import LATENCY_NS, Draft, EdgeKind, Graph, Times
from whystall.replay.host import HostLane, Spans, Waits
from whystall.replay.rendezvous import Member, clock_shifts, instance_keys, meet
from whystall.replay.windows import MOST_EVENTS, Window, chosen_windows
from whystall.trace.columns import matching, rows_by_value
from whystall.trace.link import rows_of
from whystall.trace.model import Trace
from whystall.vocabulary.runtime_calls import is_call

# The busiest launching threads are drawn; a process with more of them is no training job.
_MOST_THREADS: Final = 16
# A launch that takes this long waits for room in the queue of launches, which holds some hundreds at least (1024 by
# default; reference: replay.md, edge j).
_STUCK_NS: Final = 50_000
_LEAST_QUEUE: Final = 256
# What a call does before it waits for the copy it started, at most.
_CALL_NS: Final = 5_000


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's trace, and what drawing needs of it."""

    number: int
    trace: Trace
    host: HostEvents
    training: int | None
    backward: frozenset[int]
    talking: frozenset[int]
    launching: tuple[int, ...]
    devices: dict[int, DeviceEvents]
    window: Window | None

    @property
    def threads(self) -> tuple[int, ...]:
        """The threads to draw, the training thread first."""
        first = () if self.training is None else (self.training,)
        return tuple(dict.fromkeys((*first, *self.launching, *sorted(self.backward), *sorted(self.talking))))


def build_graph(
    traces: Sequence[tuple[int, Trace]], classified: Sequence[Classified] = (), *, most_events: int = MOST_EVENTS
) -> Graph:
    """The graph of one trace per rank. Several ranks meet in their collectives, which also align their clocks.

    ``classified`` says of each trace what its device events are; without it the shipped kernel classes do.

    Of traces with more than ``most_events`` in all, some steps from the middle are drawn.
    """
    windows = chosen_windows([trace for _, trace in traces], most_events)
    known = classified or [classify(trace.device_events) for _, trace in traces]
    ranks = [
        _rank(number, trace, classes.class_of, window)
        for (number, trace), classes, window in zip(traces, known, windows, strict=True)
    ]
    draft = Draft()
    collectives = [_collectives(rank) for rank in ranks] if len(ranks) > 1 else []
    shifts = clock_shifts([Member(rank.number, *found) for rank, found in zip(ranks, collectives, strict=False)])
    steps: dict[int, list[NDArray[np.int64]]] = {}
    members = []
    opening = [np.zeros(0, np.int64)]
    for rank in ranks:
        draft.shift_ns = shifts.get(rank.number, 0)
        ends, own, first = _draw(draft, rank)
        members += own
        opening.append(first)
        for number, nodes in ends.items():
            steps.setdefault(number, []).append(nodes)
    draft.shift_ns = 0
    if len(ranks) > 1 and members:
        meet(draft, members)
    ended = [np.concatenate(steps[number]) for number in sorted(steps)]
    return draft.finish(ended, np.concatenate(opening), shifts)


def _rank(number: int, trace: Trace, class_of: NDArray[np.uint8], window: Window | None) -> _Rank:
    on_device = not trace.device_events.is_empty()
    host = host_events(trace, collectives=not on_device)
    found = devices_of(trace, class_of)
    if window is not None:
        found = {device: events for device, full in found.items() if len((events := _within(full, window)).row)}
    threads = [events.launches.thread[events.launches.known] for events in found.values()]
    counts = np.bincount(np.concatenate([np.zeros(0, np.int32), *threads]))
    busiest = [int(thread) for thread in np.argsort(-counts, kind="stable")[:_MOST_THREADS] if counts[thread]]
    talking = np.unique(host.thread[host.state == HostState.COMMUNICATION])[:_MOST_THREADS].tolist()
    return _Rank(
        number,
        trace,
        host,
        training_thread(trace),
        frozenset(sorted(backward_threads(trace))[:_MOST_THREADS]),
        frozenset(talking),
        tuple(busiest),
        found,
        window,
    )


def _within(events: DeviceEvents, window: Window) -> DeviceEvents:
    """The events that were launched in a window; those without a launch count by their start."""
    launches = events.launches
    at = np.where(launches.known, launches.start, events.start)
    kept = np.flatnonzero((at >= window[0]) & (at < window[1]))
    chosen = Launches(launches.known[kept], launches.start[kept], launches.end[kept], launches.thread[kept])
    return DeviceEvents(
        events.row[kept],
        events.start[kept],
        events.end[kept],
        events.class_of[kept],
        events.stream[kept],
        events.step[kept],
        chosen,
    )


def _collectives(rank: _Rank) -> tuple[pl.DataFrame, NDArray[np.int64], NDArray[np.int64], Times, Times]:
    """A rank's collectives before it is drawn: keys, no nodes yet, start and end."""
    keys, starts, ends = [], [], []
    for events in rank.devices.values():
        talks = np.flatnonzero(events.class_of == COMMUNICATION)
        keys.append(
            instance_keys(communication_records(rank.trace, events.row[talks]), events.start[talks], rank.number)
        )
        starts.append(events.start[talks])
        ends.append(events.end[talks])
    if not rank.devices:
        row, table = _host_collectives(rank)
        keys.append(table)
        starts.append(rank.host.start[row])
        ends.append(rank.host.end[row])
    start, end = np.concatenate(starts), np.concatenate(ends)
    nobody = np.full(len(start), -1, np.int64)
    return pl.concat(keys), nobody, nobody, start, end


def _host_collectives(rank: _Rank) -> tuple[NDArray[np.intp], pl.DataFrame]:
    """Collectives that ran on the host: numbers of the events of the library that did them, and their keys."""
    records = host_collectives(rank.trace)
    return records["event"].to_numpy().astype(np.intp), instance_keys(records, records["start"].to_numpy(), rank.number)


def _draw(draft: Draft, rank: _Rank) -> tuple[dict[int, NDArray[np.int64]], list[Member], NDArray[np.int64]]:
    spans = {thread: hosts.spans_of(rank.host, thread, rank.window) for thread in rank.threads}
    drawn = {
        number: devices.draw(draft, events, f"rank {rank.number} device {number}", rank.number)
        for number, events in rank.devices.items()
    }
    waits = {thread: Waits() for thread in rank.threads}
    calls = _waiting_calls(rank, drawn)
    for thread, own in calls.items():
        if thread in waits:
            waits[thread].add(own.begin, own.end)
    passed = _handovers(rank, spans, waits)
    polled = _polls(rank, spans, waits)
    steps = rank.trace.steps
    ends = (steps["ts_ns"] + steps["duration_ns"]).to_numpy()
    cuts = ends if not rank.devices and len(steps) else np.zeros(0, np.int64)
    lanes = {
        thread: hosts.draw(
            draft,
            f"rank {rank.number} thread {thread}",
            spans[thread],
            waits[thread],
            np.sort(cuts) if thread == rank.training else np.zeros(0, np.int64),
            _active(rank, thread, passed),
            rank=rank.number,
        )
        for thread in rank.threads
    }
    for waiting, working, begin, end in passed:
        draft.edges(lanes[waiting].ending_by(begin), lanes[working].beginning_at(begin), EdgeKind.HANDOVER)
        draft.edges(lanes[working].ending_by(end), lanes[waiting].beginning_at(end), EdgeKind.HANDOVER)
    for number, nodes in drawn.items():
        _link_launches(draft, nodes, lanes, calls)
        devices.link_stream_waits(draft, rank.trace, nodes)
        _link_syncs(draft, nodes, lanes, calls)
        for device, thread, place, end in polled:
            if device == number:
                draft.edges(nodes.exit_of(place), lanes[thread].beginning_at(end), EdgeKind.INFERRED)
    return _step_ends(rank, drawn, lanes), _members(draft, rank, drawn, lanes), _opening(rank, lanes)


def _opening(rank: _Rank, lanes: dict[int, HostLane]) -> NDArray[np.int64]:
    """The node with which the first step begins on the training thread, if it is drawn."""
    if rank.training is None:
        return np.zeros(0, np.int64)
    found = lanes[rank.training].beginning_at(rank.trace.steps["ts_ns"].to_numpy()[:1])
    return found[found >= 0]


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls that waited for a device, in order: when they were made, what they waited from and until.

    ``launched_first`` are those that start something and then wait for it; others wait first, or start nothing.
    """

    called: Times
    begin: Times
    end: Times
    launched_first: NDArray[np.bool_]


def _waiting_calls(rank: _Rank, drawn: dict[int, DeviceNodes]) -> dict[int, _Calls]:
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
        for own, ended, since, first in (
            _blocked_copies(rank, nodes, launch, start, end),
            _stuck_launches(nodes, launch, start, end),
        ):
            until[own] = np.maximum(until[own], ended)
            begin[own] = since
            launched_first[own] = first
    begin = np.maximum(begin, start)
    real = np.flatnonzero((until > begin) & (thread >= 0))
    out = {}
    for one in np.unique(thread[real]).tolist():
        mine = real[thread[real] == one]
        out[int(one)] = _Calls(start[mine], begin[mine], until[mine], launched_first[mine])
    return out


_NEVER: Final = int(np.iinfo(np.int64).min)
_Blocked = tuple[NDArray[Any], Times, Times, bool]


def _blocked_copies(rank: _Rank, nodes: DeviceNodes, launch: NDArray[np.int32], start: Times, end: Times) -> _Blocked:
    """Calls that return after their own copy has ended waited for it, whatever their name."""
    is_copy = matching(rank.trace.device_events["kind"], lambda kind: kind == "memcpy")[nodes.events.row]
    copies = np.flatnonzero((launch >= 0) & is_copy)
    own = launch[copies]
    blocked = nodes.events.end[copies] <= end[own]
    own, copies = own[blocked].astype(np.intp), copies[blocked]
    since: Times = np.minimum(start[own] + _CALL_NS, nodes.events.start[copies])
    return own, nodes.events.end[copies], since, True


def _stuck_launches(nodes: DeviceNodes, launch: NDArray[np.int32], start: Times, end: Times) -> _Blocked:
    """Launches that took long, returned as some event of the device ended, and had hundreds of events before them."""
    events = nodes.events
    calls = np.unique(launch[launch >= 0]).astype(np.intp)
    calls = calls[end[calls] - start[calls] >= _STUCK_NS]
    ended = np.sort(events.end)
    done = np.searchsorted(ended, end[calls], side="right")
    asked = np.searchsorted(np.sort(events.launches.start[events.launches.known]), start[calls], side="left")
    last = ended[np.maximum(done - 1, 0)]
    full = (done > 0) & (asked - done >= _LEAST_QUEUE) & (end[calls] - last <= LATENCY_NS)
    return calls[full], last[full], start[calls[full]] + _CALL_NS, False


def _handovers(rank: _Rank, spans: dict[int, Spans], waits: dict[int, Waits]) -> list[tuple[int, int, Times, Times]]:
    """Where the training thread waits for those that run its backward pass or its collectives."""
    out = []
    for working in (*sorted(rank.backward), *sorted(rank.talking)):
        if rank.training is None or working == rank.training or working not in spans:
            continue
        begin, end = hosts.handovers(spans[rank.training], spans[working], in_collectives=working in rank.talking)
        waits[rank.training].add(begin, end)
        out.append((rank.training, working, begin, end))
    return out


def _active(rank: _Rank, thread: int, passed: list[tuple[int, int, Times, Times]]) -> Waits | None:
    """When a thread that works for the training thread is at it; ``None``: a thread of its own, always."""
    if thread == rank.training or thread not in rank.backward | rank.talking:
        return None
    active = Waits()
    for _, working, begin, end in passed:
        if working == thread:
            active.add(begin, end)
    return active


def _polls(
    rank: _Rank, spans: dict[int, Spans], waits: dict[int, Waits]
) -> list[tuple[int, int, NDArray[np.intp], Times]]:
    """Where a thread watched for the end of a device event by itself: device, thread, event's place, until when."""
    out = []
    for number, events in rank.devices.items():
        for thread in rank.launching:
            own = np.flatnonzero(events.launches.known & (events.launches.thread == thread))
            own = own[np.argsort(events.launches.start[own], kind="stable")]
            begin, end, which = hosts.polls(spans[thread], events.launches.start[own], events.end[own])
            waits[thread].add(begin, end)
            out.append((number, thread, own[which], end))
    return out


def _link_launches(draft: Draft, nodes: DeviceNodes, lanes: dict[int, HostLane], calls: dict[int, _Calls]) -> None:
    """An event waits for the call that launched it (of a call that waited itself, for the part before the wait)."""
    launches = nodes.events.launches
    for thread, lane in lanes.items():
        place = np.flatnonzero(launches.known & (launches.thread == thread))
        if not len(place):
            continue
        until = launches.end[place]
        waiting = calls.get(thread)
        if waiting is not None:
            index = np.minimum(np.searchsorted(waiting.called, launches.start[place]), len(waiting.called) - 1)
            first = (waiting.called[index] == launches.start[place]) & waiting.launched_first[index]
            until = np.where(first, waiting.begin[index], until)
        late = nodes.events.start[place] - until
        draft.edges(lane.ending_by(until), nodes.body[place], EdgeKind.LAUNCH, np.minimum(late, nodes.latency_ns))


def _link_syncs(draft: Draft, nodes: DeviceNodes, lanes: dict[int, HostLane], calls: dict[int, _Calls]) -> None:
    """What follows a wait in a call waits for the last event of every stream that had ended by then."""
    for thread, waiting in calls.items():
        lane = lanes.get(thread)
        if lane is None:
            continue
        after = lane.beginning_at(waiting.end)
        for stream in nodes.streams.values():
            place = stream.last_before(np.maximum(waiting.called + 1, waiting.begin), waiting.end)
            draft.edges(nodes.exit_of(place), after, EdgeKind.SYNC)


def _step_ends(rank: _Rank, drawn: dict[int, DeviceNodes], lanes: dict[int, HostLane]) -> dict[int, NDArray[np.int64]]:
    """Per step the nodes that must have ended for it to be over.

    All that it launched on a device, or without one what the training thread did last in it.
    """
    out: dict[int, list[NDArray[np.int64]]] = {}
    for nodes in drawn.values():
        for step, place in rows_by_value(nodes.events.step).items():
            if step >= 0:
                out.setdefault(step, []).append(nodes.exit[place])
    if not drawn and rank.training is not None and not rank.trace.steps.is_empty():
        ends = (rank.trace.steps["ts_ns"] + rank.trace.steps["duration_ns"]).to_numpy()
        begin = rank.trace.steps["ts_ns"].to_numpy()
        last = lanes[rank.training].ending_by(ends)
        for step in range(len(ends)):
            inside = rank.window is None or rank.window[0] <= begin[step] < rank.window[1]
            if last[step] >= 0 and inside:
                out[step] = [last[step : step + 1]]
    return {step: np.concatenate(parts) for step, parts in out.items()}


def _members(draft: Draft, rank: _Rank, drawn: dict[int, DeviceNodes], lanes: dict[int, HostLane]) -> list[Member]:
    """The rank's collectives as nodes, on the common clock."""
    out = []
    for nodes in drawn.values():
        talks = np.flatnonzero(nodes.events.class_of == COMMUNICATION)
        start, end = nodes.events.start[talks], nodes.events.end[talks]
        keys = instance_keys(communication_records(rank.trace, nodes.events.row[talks]), start, rank.number)
        shift = draft.shift_ns
        out.append(Member(rank.number, keys, nodes.body[talks], nodes.exit[talks], start + shift, end + shift))
    if not drawn:
        out += _host_members(draft, rank, lanes)
    return out


def _host_members(draft: Draft, rank: _Rank, lanes: dict[int, HostLane]) -> list[Member]:
    row, keys = _host_collectives(rank)
    body = np.full(len(row), -1, np.int64)
    leaves = body.copy()
    for lane in lanes.values():
        order = np.argsort(lane.event, kind="stable")
        index = np.searchsorted(lane.event[order], row)
        inside = index < len(order)
        at = order[np.minimum(index, max(len(order) - 1, 0))] if len(order) else np.zeros(len(row), np.intp)
        here = inside & (lane.event[at] == row if len(order) else False)
        body = np.where(here, lane.node[at] if len(order) else -1, body)
        leaves = np.where(here, lane.exit[at] if len(order) else -1, leaves)
    known = np.flatnonzero(body >= 0)
    start, end = rank.host.start[row] + draft.shift_ns, rank.host.end[row] + draft.shift_ns
    return [Member(rank.number, keys[known], body[known], leaves[known], start[known], end[known])]
