"""The dependency graph: tasks with durations, and their dependencies.

A node is a stretch of a host thread with one innermost event, or one device event. Nodes are listed so that every edge
leads to a later one, which makes a replay a single pass. A node's ``delay`` is its wait beyond all its edges: the
replay of the unchanged graph reproduces the recording exactly, and the delays are the part that no edge explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall import _native
from whystall.analysis.rank_clocks import RankClock

Times = NDArray[np.int64]
Nodes = NDArray[np.intp]
Mask = NDArray[np.bool_]

# A launch reaches an idle device, and a queued event follows its predecessor, within this time: such a delay is how the
# device works. A longer one has a cause that no edge names. (reference: traces.md, "gap < 10 us")
LATENCY_NS: Final = 10_000


class NodeKind(IntEnum):
    """Kinds of nodes."""

    HOST = 0
    DEVICE = 1
    JOINT = 2
    """Where something ends that other nodes wait for: the exit of a collective, or its transfer on all ranks."""


class EdgeKind(IntEnum):
    """Why a node waits for another."""

    PROGRAM = 0
    LAUNCH = 1
    STREAM = 2
    EVENT = 3
    INFERRED = 4
    SYNC = 5
    HANDOVER = 6
    RENDEZVOUS = 7
    ROOM = 8
    """A launch finds room in its stream's queue once an earlier event has ended."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes as columns in an order that all edges follow; edges grouped by target (``first``)."""

    start: Times
    duration: Times
    delay: Times
    kind: NDArray[np.uint8]
    state: NDArray[np.uint8]
    event: NDArray[np.int32]
    """Host nodes: the event's number in the trace's ``host_order`` numbering, or -1. Device nodes: the row."""
    lane: NDArray[np.int32]
    """Thread, or device and stream, in one numbering over all ranks (``lanes`` names them)."""
    rank: NDArray[np.int64]
    first: NDArray[np.uint64]
    source: NDArray[np.uint32]
    target: NDArray[np.int64]
    """The node that each edge leads to (as in ``first``)."""
    lag: Times
    edge_kind: NDArray[np.uint8]
    lanes: tuple[str, ...]
    step_nodes: Nodes
    """Nodes that must have ended for a step to be over, step by step, of all ranks."""
    step_first: NDArray[np.int64]
    """Where in ``step_nodes`` each step begins; one more than there are steps."""
    opening: Nodes
    """The nodes with which the first step begins on the training threads of the ranks."""
    dropped_edges: int
    """Dependencies that the recording contradicts (clocks, lost events)."""
    clocks: dict[int, RankClock]
    """The mapping of each rank's own times to one clock for all."""

    def own_times(self, rank: int, times: Times) -> Times:
        """Times of the graph as a rank's own clock, and so its trace, has them."""
        clock = self.clocks.get(rank)
        return times if clock is None else clock.own(times)


@dataclass(frozen=True, slots=True)
class Played:
    """When every node started and ended, and the edge that decided its start (-1: none)."""

    start: Times
    end: Times
    decided_by: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Change:
    """A what-if: new durations, delays and lags of edges, and removed edges.

    Two are equal only if they are one object, so that results can be cached by it.
    """

    duration: Times | None = None
    delay: Times | None = None
    lag: Times | None = None
    removed_edges: Mask | None = None

    def __post_init__(self) -> None:
        """A diagnosis holds dozens of these, each as long as its graph: times that fit take half the room."""
        for name in ("duration", "delay", "lag"):
            object.__setattr__(self, name, _narrow(getattr(self, name)))

    def then(self, other: Change, graph: Graph) -> Change:
        """Both changes at once; where both shorten a node the shorter one counts."""
        return Change(
            duration=_shorter(self.duration, other.duration),
            delay=_shorter(self.delay, other.delay),
            lag=_shorter(self.lag, other.lag),
            removed_edges=_either(self.removed_edges, other.removed_edges, graph),
        )


def _narrow(times: Times | None) -> Times | None:
    if times is None or not len(times) or times.dtype != np.int64:
        return times
    limits = np.iinfo(np.int32)
    fits = limits.min <= times.min() and times.max() <= limits.max
    return times.astype(np.int32) if fits else times


def _shorter(one: Times | None, other: Times | None) -> Times | None:
    if one is None or other is None:
        return other if one is None else one
    return np.minimum(one, other)


def _either(one: Mask | None, other: Mask | None, graph: Graph) -> Mask | None:
    if one is None or other is None:
        return other if one is None else one
    return np.logical_or(one, other, out=np.zeros(len(graph.source), np.bool_))


def play(graph: Graph, change: Change | None = None) -> Played:
    """Start and end of every node, under a change."""
    change = change or Change()
    first, source = graph.first, graph.source
    lag = graph.lag if change.lag is None else change.lag
    kept = _kept_edges(graph, change)
    if kept is not None:
        counts = np.bincount(graph.target[kept], minlength=len(graph.start))
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
        source, lag = source[kept], lag[kept]
    start, end, decided = _native.replay(
        _column(graph.duration if change.duration is None else change.duration),
        _column(graph.delay if change.delay is None else change.delay),
        first,
        np.ascontiguousarray(source),
        _column(lag),
    )
    if kept is not None:
        decided = np.where(decided >= 0, kept[np.maximum(decided, 0)], -1)
    return Played(start, end, decided)


def _kept_edges(graph: Graph, change: Change) -> Nodes | None:
    """The edges that stay, or ``None`` for all.

    A node keeps its edges when all of them would go: it would begin before everything else.
    """
    removed = change.removed_edges
    if removed is None or not removed.any():
        return None
    target = graph.target
    left = np.bincount(target[~removed], minlength=len(graph.start))
    return np.flatnonzero(~removed | (left[target] == 0))


def _column(values: Times) -> Times:
    return np.ascontiguousarray(values, dtype=np.int64)


class Draft:
    """A graph that is being drawn: nodes and edges in any order, numbered as they come."""

    def __init__(self) -> None:
        self._columns: dict[str, list[NDArray[Any]]] = {
            name: [] for name in ("start", "duration", "kind", "state", "event", "lane", "rank")
        }
        self._edges: list[tuple[NDArray[np.int64], NDArray[np.int64], Times, EdgeKind]] = []
        self._first: list[NDArray[np.int64]] = []
        self.count = 0
        self.lanes: list[str] = []
        self.clock = RankClock()
        """That of the rank whose turn it is: every node that is drawn is put on the clock of all."""

    def lane(self, name: str) -> int:
        """A new lane."""
        self.lanes.append(name)
        return len(self.lanes) - 1

    def nodes(
        self,
        start: Times,
        end: Times,
        *,
        kind: NodeKind,
        lane: int | NDArray[np.int32],
        rank: int,
        state: NDArray[np.uint8] | None = None,
        event: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Adds nodes, returns their numbers."""
        count = len(start)
        add = self._columns
        begin = self.clock.shared(np.asarray(start, np.int64))
        add["start"].append(begin)
        add["duration"].append(self.clock.shared(np.asarray(end, np.int64)) - begin)
        add["kind"].append(np.full(count, kind, np.uint8))
        add["state"].append(np.zeros(count, np.uint8) if state is None else state.astype(np.uint8))
        add["event"].append(np.full(count, -1, np.int32) if event is None else event.astype(np.int32))
        add["lane"].append(np.broadcast_to(np.asarray(lane, np.int32), count))
        add["rank"].append(np.full(count, rank, np.int64))
        numbers = np.arange(self.count, self.count + count)
        self.count += count
        return numbers

    def edges(self, source: NDArray[np.int64], target: NDArray[np.int64], kind: EdgeKind, lag: Times | int = 0) -> None:
        """Adds edges; those that name no node (-1) are left out."""
        known = (source >= 0) & (target >= 0)
        lags = np.broadcast_to(np.asarray(lag, np.int64), len(source))
        self._edges.append((source[known], target[known], lags[known], kind))

    def first(self, nodes: NDArray[np.int64]) -> None:
        """Orders these nodes first among nodes without duration at one instant, regardless of when they were drawn."""
        self._first.append(nodes[nodes >= 0])

    def shorten(self, nodes: NDArray[np.int64]) -> None:
        """Leaves nodes without a duration: their work is drawn elsewhere."""
        self.column("duration")[nodes] = 0

    def column(self, name: str) -> NDArray[Any]:
        """A column of all nodes drawn so far."""
        parts = self._columns[name]
        joined = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        self._columns[name] = [joined]
        return joined

    def _taken(self, name: str) -> NDArray[Any]:
        joined = self.column(name)
        del self._columns[name]
        return joined

    def finish(
        self, steps: Sequence[NDArray[np.int64]], opening: NDArray[np.int64], clocks: dict[int, RankClock]
    ) -> Graph:
        """The graph: nodes in order of their recorded start, edges that the recording allows, delays.

        The draft is used up: nothing is held twice.
        """
        start, duration = self._taken("start"), self._taken("duration")
        # At one instant nodes without duration come first, then calls, then the work that they launch, which begins no
        # earlier where clocks are coarse; drawing order is program order.
        later = np.ones(self.count, np.bool_)
        for nodes in self._first:
            later[nodes] = False
        launched = (self.column("kind") == NodeKind.DEVICE) & (duration > 0)
        order = np.lexsort((np.arange(self.count), later, launched, duration > 0, start))
        place = np.empty(self.count, np.int64)
        place[order] = np.arange(self.count)
        source, target, lag, kind = self._joined_edges(place)
        start, duration = start[order], duration[order]
        end = start + duration
        # Where device events overlap on their stream, or start before their launch returns, the lag is negative.
        elastic = np.isin(kind, (EdgeKind.STREAM, EdgeKind.LAUNCH))
        late = end[source] + lag - start[target]
        lag = np.where(elastic & (late > 0), lag - late, lag)
        possible = (source < target) & ((late <= 0) | (elastic & (start[source] <= start[target])))
        dropped = int(np.count_nonzero(~possible))
        by_target = np.flatnonzero(possible)[np.argsort(target[possible], kind="stable")]
        source, target, lag, kind = source[by_target], target[by_target], lag[by_target], kind[by_target]
        ready = np.zeros(self.count, np.int64)
        counts = np.bincount(target, minlength=self.count)
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
        fed = np.flatnonzero(counts)
        allowed = np.maximum(end[source] + lag, start[source])
        if len(fed):
            ready[fed] = np.maximum.reduceat(allowed, first[fed].astype(np.int64))
        return Graph(
            start=start,
            duration=duration,
            delay=start - ready,
            kind=self._taken("kind")[order],
            state=self._taken("state")[order],
            event=self._taken("event")[order],
            lane=self._taken("lane")[order],
            rank=self._taken("rank")[order],
            first=first,
            source=source.astype(np.uint32),
            target=target,
            lag=lag,
            edge_kind=kind,
            lanes=tuple(self.lanes),
            step_nodes=np.concatenate([np.zeros(0, np.intp), *(place[nodes].astype(np.intp) for nodes in steps)]),
            step_first=np.concatenate([[0], np.cumsum([len(nodes) for nodes in steps])]).astype(np.int64),
            opening=place[opening].astype(np.intp),
            dropped_edges=dropped,
            clocks=clocks,
        )

    def _joined_edges(
        self, place: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Times, NDArray[np.uint8]]:
        none = np.zeros(0, np.int64)
        source = np.concatenate([none, *(edge[0] for edge in self._edges)])
        target = np.concatenate([none, *(edge[1] for edge in self._edges)])
        lag = np.concatenate([none, *(edge[2] for edge in self._edges)])
        kinds = [np.full(len(edge[0]), edge[3], np.uint8) for edge in self._edges]
        self._edges.clear()
        return place[source], place[target], lag, np.concatenate([np.zeros(0, np.uint8), *kinds])
