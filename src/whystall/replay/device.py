"""Device events as nodes: launched by a call, in the order of their stream, after the events of other streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.device import DeviceEvents
from whystall.analysis.kernel_classes import COMMUNICATION
from whystall.replay.graph import LATENCY_NS, Draft, EdgeKind, NodeKind, Times
from whystall.replay.graph_edges import edges_in_graphs
from whystall.trace.columns import codes, rows_by_value
from whystall.trace.model import Trace

# Device time of a back-to-back launch when nothing can be measured (reference: causes.md, "kernel gap ~1 us").
_DEFAULT_GAP_NS: Final = 1_000
_NONE: Final = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class StreamEvents:
    """One stream's events in order of start."""

    place: NDArray[np.intp]
    """Places in the device's columns."""
    start: Times
    reached: Times
    """The latest end up to each event."""
    launched: Times
    """The latest launch up to each event; events without a launch are as early as the one before them."""

    def last_before(
        self, launched_before: Times, ended_by: Times, behind: NDArray[np.int64] | int = 0
    ) -> NDArray[np.intp]:
        """The last event launched before an instant that had ended by another: a place or -1.

        With ``behind``, the event that many places before it.
        """
        index = np.searchsorted(self.launched, launched_before, side="left") - behind
        index = np.minimum(index, np.searchsorted(self.reached, ended_by, side="right")) - 1
        return np.where(index >= 0, self.place[np.maximum(index, 0)], -1)

    def running_at(self, launched_before: Times, instants: Times) -> NDArray[np.int64]:
        """How many events launched before some instants had not ended by others."""
        launched = np.searchsorted(self.launched, launched_before, side="left")
        running: NDArray[np.int64] = np.maximum(launched - np.searchsorted(self.reached, instants, side="right"), 0)
        return running


@dataclass(frozen=True, slots=True)
class DeviceNodes:
    """A drawn device: per event the node that is its body, and the one that others wait for."""

    events: DeviceEvents
    body: NDArray[np.int64]
    exit: NDArray[np.int64]
    streams: dict[int, StreamEvents]
    gap_ns: int
    """Typical gap between two queued events of a stream."""
    latency_ns: int
    """From the end of a launch call to its event on an idle stream, typically (negative: it starts before)."""

    def exit_of(self, place: NDArray[np.intp]) -> NDArray[np.int64]:
        """The exits of events, -1 for -1."""
        return np.where(place >= 0, self.exit[np.maximum(place, 0)], -1)


def draw(draft: Draft, events: DeviceEvents, name: str, rank: int) -> DeviceNodes:
    """Draws a device's events and the order of its streams; launches are drawn by `link_launches`."""
    lanes = np.zeros(len(events.row), np.int32)
    streams = {}
    for number, place in rows_by_value(events.stream).items():
        lanes[place] = draft.lane(f"{name} stream {number}")
        known = events.launches.known[place]
        launched = np.where(known, events.launches.start[place], np.iinfo(np.int64).min)
        streams[number] = StreamEvents(
            place, events.start[place], np.maximum.accumulate(events.end[place]), np.maximum.accumulate(launched)
        )
    body = draft.nodes(
        events.start,
        events.end,
        kind=NodeKind.DEVICE,
        lane=lanes,
        rank=rank,
        state=events.class_of,
        event=events.row.astype(np.int64),
    )
    leaves = body.copy()
    talks = np.flatnonzero(events.class_of == COMMUNICATION)
    end = events.end[talks]
    leaves[talks] = draft.nodes(
        end,
        end,
        kind=NodeKind.JOINT,
        lane=lanes[talks],
        rank=rank,
        state=events.class_of[talks],
        event=events.row[talks].astype(np.int64),
    )
    draft.edges(body[talks], leaves[talks], EdgeKind.STREAM)
    gap = _typical_gap(events, streams)
    for stream in streams.values():
        before, after = stream.place[:-1], stream.place[1:]
        between = events.start[after] - events.end[before]
        draft.edges(leaves[before], body[after], EdgeKind.STREAM, np.minimum(between, gap))
    return DeviceNodes(events, body, leaves, streams, gap, _typical_latency(events, streams))


def _typical_gap(events: DeviceEvents, streams: dict[int, StreamEvents]) -> int:
    """Between two events of a stream; the second one was launched before the first ended."""
    found = []
    for stream in streams.values():
        before, after = stream.place[:-1], stream.place[1:]
        queued = events.launches.known[after] & (events.launches.end[after] < events.end[before])
        between = (events.start[after] - events.end[before])[queued]
        found.append(between[(between >= 0) & (between < LATENCY_NS)])
    gaps = np.concatenate([_NONE, *found])
    return int(np.median(gaps)) if len(gaps) else _DEFAULT_GAP_NS


def _typical_latency(events: DeviceEvents, streams: dict[int, StreamEvents]) -> int:
    """From the end of a launch to its event, of events whose stream was empty when they were launched."""
    found = []
    for stream in streams.values():
        place = stream.place
        empty = np.append(True, stream.reached[:-1] <= events.launches.start[place[1:]])
        late = (events.start[place] - events.launches.end[place])[empty & events.launches.known[place]]
        found.append(late[late < LATENCY_NS])
    latencies = np.concatenate([_NONE, *found])
    return int(np.median(latencies)) if len(latencies) else 0


def link_stream_waits(draft: Draft, trace: Trace, drawn: DeviceNodes) -> None:
    """Edges for waits of one stream on another: as recorded, else as the calls and times allow."""
    recorded = _recorded_waits(draft, trace, drawn)
    if not recorded:
        _allowed_waits(draft, trace, drawn)
    _waits_in_graphs(draft, trace, drawn)
    _evident_waits(draft, drawn)


def _recorded_waits(draft: Draft, trace: Trace, drawn: DeviceNodes) -> bool:
    """Waits that name their event: every one of them, not the last alone."""
    table = trace.synchronizations
    if table.is_empty():
        return False
    calls = trace.runtime_calls.select("correlation", "ts_ns").drop_nulls().unique("correlation", keep="first")
    waits = (
        table.filter(
            pl.col("name").cast(pl.String).str.contains("Stream Wait Event")
            & pl.col("wait_on_correlation").is_not_null()
        )
        .select("correlation", "stream", "wait_on_stream", "wait_on_correlation", "ts_ns")
        .join(
            calls.rename({"ts_ns": "recorded_ns"}), left_on="wait_on_correlation", right_on="correlation", how="inner"
        )
        .join(calls.rename({"ts_ns": "called_ns"}), on="correlation", how="left")
        .with_columns(pl.coalesce("called_ns", "ts_ns").alias("called_ns"))
        .drop_nulls(["stream", "wait_on_stream"])
        .sort("called_ns", "recorded_ns", "stream", "wait_on_stream")
    )
    for (waiting, awaited), group in waits.group_by("stream", "wait_on_stream", maintain_order=True):
        consumer, producer = drawn.streams.get(int(waiting)), drawn.streams.get(int(awaited))
        if consumer is None or producer is None or consumer is producer:
            continue
        later = _first_launched_after(consumer, group["called_ns"].to_numpy())
        earlier = np.searchsorted(producer.launched, group["recorded_ns"].to_numpy(), side="left") - 1
        place = np.where(earlier >= 0, producer.place[np.maximum(earlier, 0)], -1)
        draft.edges(drawn.exit_of(place), _body(drawn, later), EdgeKind.EVENT)
    return not waits.is_empty()


def _waits_in_graphs(draft: Draft, trace: Trace, drawn: DeviceNodes) -> None:
    """The edges of CUDA graphs between events of this device."""
    before, after = edges_in_graphs(trace)
    if len(before):
        place = np.full(len(trace.device_events), -1, np.intp)
        place[drawn.events.row] = np.arange(len(drawn.events.row))
        draft.edges(drawn.exit_of(place[before]), _body(drawn, place[after]), EdgeKind.EVENT)


def _first_launched_after(stream: StreamEvents, instants: Times) -> NDArray[np.intp]:
    index = np.searchsorted(stream.launched, instants, side="left")
    return np.where(index < len(stream.place), stream.place[np.minimum(index, len(stream.place) - 1)], -1)


def _body(drawn: DeviceNodes, place: NDArray[np.intp]) -> NDArray[np.int64]:
    return np.where(place >= 0, drawn.body[np.maximum(place, 0)], -1)


def _allowed_waits(draft: Draft, trace: Trace, drawn: DeviceNodes) -> None:
    """Without a record of events: a launch after a wait call waits for the earlier work of other streams.

    That is all work launched before the call on other streams that had ended in time. If the wait delayed nothing, it
    is only work that had ended before every such event (by kernel name and stream): an event that ran on beside one of
    them is waited for by none.
    """
    names = codes(trace.device_events["name"])[drawn.events.row]
    held = _held_up(drawn)
    calls = trace.runtime_calls
    chosen = calls["name"].cast(pl.String).str.contains("StreamWaitEvent").to_numpy()
    waits = calls["ts_ns"].to_numpy()[chosen]
    thread = calls["thread"].to_numpy()[chosen]
    events = drawn.events
    for one in np.unique(thread).tolist():
        own = np.flatnonzero(events.launches.known & (events.launches.thread == one))
        own = own[np.argsort(events.launches.start[own], kind="stable")]
        called = waits[thread == one]
        index = np.searchsorted(events.launches.start[own], called, side="left")
        called, index = called[index < len(own)], index[index < len(own)]
        consumer = own[index]
        _, kind = np.unique(np.stack([events.stream[consumer], names[consumer]]), axis=1, return_inverse=True)
        for number, stream in drawn.streams.items():
            behind = np.zeros(len(kind), np.int64)
            np.maximum.at(behind, kind, stream.running_at(called, events.start[consumer]))
            latest = stream.last_before(called, events.start[consumer])
            # An event that had ended before a launch did not delay it.
            by_it = held[consumer] & (latest >= 0) & (events.end[latest] > events.launches.start[consumer])
            producer = stream.last_before(called, events.start[consumer], np.where(by_it, 0, behind[kind]))
            elsewhere = (producer >= 0) & (number != events.stream[consumer])
            draft.edges(drawn.exit_of(producer[elsewhere]), drawn.body[consumer[elsewhere]], EdgeKind.INFERRED)


def _held_up(drawn: DeviceNodes) -> NDArray[np.bool_]:
    """Which events began later than their stream was free and their launch was through."""
    events = drawn.events
    out = np.zeros(len(events.start), np.bool_)
    for stream in drawn.streams.values():
        place = stream.place[1:]
        free_at = np.maximum(
            stream.reached[:-1] + drawn.gap_ns,
            np.where(events.launches.known[place], events.launches.end[place] + drawn.latency_ns, stream.reached[:-1]),
        )
        out[place] = events.start[place] - free_at > LATENCY_NS
    return out


def _evident_waits(draft: Draft, drawn: DeviceNodes) -> None:
    """An event that had been launched, whose stream was free, and that began as one of another stream ended."""
    events = drawn.events
    held = _held_up(drawn)
    for stream in drawn.streams.values():
        late = stream.place[held[stream.place]]
        for other in drawn.streams.values():
            if other is stream or not len(late):
                continue
            start = events.start[late]
            launched = np.where(events.launches.known[late], events.launches.start[late], np.iinfo(np.int64).max)
            producer = other.last_before(launched, start)
            recent = (producer >= 0) & (start - events.end[np.maximum(producer, 0)] <= LATENCY_NS)
            draft.edges(drawn.exit_of(producer[recent]), drawn.body[late[recent]], EdgeKind.INFERRED)
