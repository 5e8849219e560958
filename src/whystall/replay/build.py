"""From the traces of a run to its dependency graph."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.communication import communication_records, host_collectives
from whystall.analysis.kernel_classes import COMMUNICATION, Classified, classify
from whystall.analysis.meetings import Attendance, meetings
from whystall.analysis.rank_clocks import RankClock, rank_clocks
from whystall.analysis.step_numbers import shared, shifts
from whystall.replay import device as devices
from whystall.replay import host as hosts
from whystall.replay.device import DeviceNodes
from whystall.replay.graph import Draft, EdgeKind, Graph, Times
from whystall.replay.host import HostLane, Spans, Waits
from whystall.replay.rank import DrawnRank, drawn_rank
from whystall.replay.rendezvous import Member, meet
from whystall.replay.talks import link_enqueued
from whystall.replay.waits import WaitingCalls, makes_room, waiting_calls
from whystall.replay.windows import MOST_EVENTS, chosen_windows
from whystall.trace.columns import rows_by_value
from whystall.trace.model import Trace


def build_graph(
    traces: Sequence[tuple[int, Trace]], classified: Sequence[Classified] = (), *, most_events: int = MOST_EVENTS
) -> Graph:
    """The graph of one trace per rank. Several ranks meet in their collectives, which also align their clocks.

    ``classified`` holds the class of each trace's device events; without it the shipped kernel classes apply.

    If the traces have more than ``most_events`` in all, the graph covers some steps from the middle.
    """
    windows = chosen_windows([trace for _, trace in traces], most_events)
    known = classified or [classify(trace.device_events) for _, trace in traces]
    ranks = [
        drawn_rank(number, trace, classes.class_of, window)
        for (number, trace), classes, window in zip(traces, known, windows, strict=True)
    ]
    draft = Draft()
    collectives = [_collectives(rank) for rank in ranks] if len(ranks) > 1 else []
    numbers = meetings(collectives)
    clocks = rank_clocks(collectives, numbers)
    steps: dict[int, list[NDArray[np.int64]]] = {}
    recorded: list[NDArray[np.int64]] = []
    members = []
    opening = [np.zeros(0, np.int64)]
    own_steps = [_asked_in(rank) for rank in ranks] if collectives else []
    moved = shifts(own_steps, numbers)
    for rank, number, later in zip_longest(ranks, numbers, moved):
        draft.clock = clocks.get(rank.number, RankClock())
        ends, first, drawn, lanes = _draw(draft, rank)
        if number is not None and len(number):
            members.append(_member(draft, rank, number, drawn, lanes))
        opening.append(first)
        for step, nodes in ends.items():
            steps.setdefault(step + (later or 0), []).append(nodes)
        recorded.append(np.array(list(ends), np.int64) + (later or 0))
    draft.clock = RankClock()
    if members:
        meet(draft, members)
    whole = shared(recorded) if any(moved) else steps.keys()
    ended = [np.concatenate(steps[number]) for number in sorted(steps) if number in whole]
    return draft.finish(ended, np.concatenate(opening), clocks)


def _collectives(rank: DrawnRank) -> Attendance:
    """A rank's collectives: those of its devices one after another, or those that ran on the host."""
    if not rank.devices:
        records = host_collectives(rank.trace)
        row = records["event"].to_numpy()
        return Attendance(rank.number, records, rank.host.start[row], rank.host.end[row], on_host=True)
    talks = {number: np.flatnonzero(events.class_of == COMMUNICATION) for number, events in rank.devices.items()}
    return Attendance(
        rank.number,
        pl.concat([communication_records(rank.trace, rank.devices[one].row[at]) for one, at in talks.items()]),
        np.concatenate([rank.devices[one].start[at] for one, at in talks.items()]),
        np.concatenate([rank.devices[one].end[at] for one, at in talks.items()]),
    )


def _asked_in(rank: DrawnRank) -> NDArray[np.int64]:
    """The step in which each of a rank's collectives was enqueued, in the order of `_collectives`; -1: in none."""
    if not rank.devices:
        row = host_collectives(rank.trace)["event"].to_numpy()
        begin = rank.trace.steps["ts_ns"].to_numpy()
        asked: NDArray[np.int64] = np.searchsorted(begin, rank.host.start[row], side="right").astype(np.int64) - 1
        return asked
    own = [events.step[events.class_of == COMMUNICATION] for events in rank.devices.values()]
    return np.concatenate(own, dtype=np.int64)


def _draw(
    draft: Draft, rank: DrawnRank
) -> tuple[dict[int, NDArray[np.int64]], NDArray[np.int64], dict[int, DeviceNodes], dict[int, HostLane]]:
    """The ends of a rank's steps, the node with which the first begins, and the drawn nodes."""
    spans = {thread: hosts.spans_of(rank.host, thread, rank.window) for thread in rank.threads}
    drawn = {
        number: devices.draw(draft, events, f"rank {rank.number} device {number}", rank.number)
        for number, events in rank.devices.items()
    }
    waits = {thread: Waits() for thread in rank.threads}
    calls = waiting_calls(rank, drawn)
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
    if rank.talking:
        link_enqueued(draft, rank.trace, rank.host, lanes)
    for number, nodes in drawn.items():
        _link_launches(draft, nodes, lanes, calls)
        devices.link_stream_waits(draft, rank.trace, nodes)
        _link_syncs(draft, nodes, lanes, calls)
        _link_room(draft, nodes, lanes, *makes_room(rank, nodes))
        for device, thread, place, end in polled:
            if device == number:
                draft.edges(nodes.exit_of(place), lanes[thread].beginning_at(end), EdgeKind.INFERRED)
    return _step_ends(rank, drawn, lanes), _opening(rank, lanes), drawn, lanes


def _opening(rank: DrawnRank, lanes: dict[int, HostLane]) -> NDArray[np.int64]:
    """The node with which the first step begins on the training thread, if it is drawn."""
    if rank.training is None:
        return np.zeros(0, np.int64)
    found = lanes[rank.training].beginning_at(rank.trace.steps["ts_ns"].to_numpy()[:1])
    return found[found >= 0]


def _handovers(
    rank: DrawnRank, spans: dict[int, Spans], waits: dict[int, Waits]
) -> list[tuple[int, int, Times, Times]]:
    """Where the training thread waits for those that run its backward pass or its collectives."""
    out = []
    for working in (*sorted(rank.backward), *sorted(rank.talking)):
        if rank.training is None or working == rank.training or working not in spans:
            continue
        begin, end = hosts.handovers(spans[rank.training], spans[working], in_collectives=working in rank.talking)
        waits[rank.training].add(begin, end)
        out.append((rank.training, working, begin, end))
    return out


def _active(rank: DrawnRank, thread: int, passed: list[tuple[int, int, Times, Times]]) -> Waits | None:
    """When a thread that works for the training thread is at it; ``None``: a thread of its own, always."""
    if thread == rank.training or thread not in rank.backward | rank.talking:
        return None
    active = Waits()
    for _, working, begin, end in passed:
        if working == thread:
            active.add(begin, end)
    return active


def _polls(
    rank: DrawnRank, spans: dict[int, Spans], waits: dict[int, Waits]
) -> list[tuple[int, int, NDArray[np.intp], Times]]:
    """The polls of a thread for the end of a device event: device, thread, event's place, end of the polling."""
    out = []
    for number, events in rank.devices.items():
        for thread in rank.launching:
            own = np.flatnonzero(events.launches.known & (events.launches.thread == thread))
            own = own[np.argsort(events.launches.start[own], kind="stable")]
            begin, end, which = hosts.polls(spans[thread], events.launches.start[own], events.end[own])
            waits[thread].add(begin, end)
            out.append((number, thread, own[which], end))
    return out


def _link_launches(
    draft: Draft, nodes: DeviceNodes, lanes: dict[int, HostLane], calls: dict[int, WaitingCalls]
) -> None:
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


def _link_syncs(draft: Draft, nodes: DeviceNodes, lanes: dict[int, HostLane], calls: dict[int, WaitingCalls]) -> None:
    """Host work after a wait in a call depends on the last event of every stream that had ended by then."""
    for thread, waiting in calls.items():
        lane = lanes.get(thread)
        if lane is None:
            continue
        after = lane.beginning_at(waiting.end)
        for stream in nodes.streams.values():
            place = stream.last_before(np.maximum(waiting.called + 1, waiting.begin), waiting.end)
            draft.edges(nodes.exit_of(place), after, EdgeKind.SYNC)


def _link_room(
    draft: Draft, nodes: DeviceNodes, lanes: dict[int, HostLane], before: NDArray[np.intp], after: NDArray[np.intp]
) -> None:
    """Host work after a launch depends on the event that made room for it in the stream's queue."""
    launches = nodes.events.launches
    for thread, lane in lanes.items():
        own = launches.thread[after] == thread
        target = lane.beginning_at(launches.end[after[own]])
        draft.edges(nodes.exit_of(before[own]), target, EdgeKind.ROOM)


def _step_ends(
    rank: DrawnRank, drawn: dict[int, DeviceNodes], lanes: dict[int, HostLane]
) -> dict[int, NDArray[np.int64]]:
    """The nodes that must have ended for each step to be over.

    All device events that it launched, or without a device the training thread's last node in the step.
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


def _member(
    draft: Draft,
    rank: DrawnRank,
    number: NDArray[np.int64],
    drawn: dict[int, DeviceNodes],
    lanes: dict[int, HostLane],
) -> Member:
    """The rank's collectives as nodes, on the clock of all; in the order of `_collectives`."""
    if not drawn:
        return _host_member(draft, rank, number, lanes)
    talks = [(nodes, np.flatnonzero(nodes.events.class_of == COMMUNICATION)) for nodes in drawn.values()]
    return Member(
        rank.number,
        number,
        np.concatenate([nodes.body[at] for nodes, at in talks]),
        np.concatenate([nodes.exit[at] for nodes, at in talks]),
        draft.clock.shared(np.concatenate([nodes.events.start[at] for nodes, at in talks])),
        draft.clock.shared(np.concatenate([nodes.events.end[at] for nodes, at in talks])),
    )


def _host_member(draft: Draft, rank: DrawnRank, number: NDArray[np.int64], lanes: dict[int, HostLane]) -> Member:
    row = host_collectives(rank.trace)["event"].to_numpy()
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
    start, end = draft.clock.shared(rank.host.start[row]), draft.clock.shared(rank.host.end[row])
    return Member(rank.number, number[known], body[known], leaves[known], start[known], end[known])
