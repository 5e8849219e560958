"""The outcome of a replay: the length of a step, the critical path, and the part that no edge explains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.host_states import HostState
from whystall.analysis.kernel_classes import CLASSES
from whystall.analysis.steadiness import FEWEST_TO_DROP
from whystall.replay.graph import LATENCY_NS, Change, EdgeKind, Graph, Mask, NodeKind, Played, play

Lanes = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How well edges explain a recording: the waiting on the critical path beyond all edges, out of its time."""

    total_ns: int
    unexplained_ns: int
    dropped_edges: int

    @property
    def share(self) -> float:
        """The share of the time that edges and durations explain.

        The path may wait before the window as well; more than all of it is not unexplained.

        >>> Fidelity(total_ns=100, unexplained_ns=25, dropped_edges=0).share
        0.75
        >>> Fidelity(total_ns=100, unexplained_ns=110, dropped_edges=0).share
        0.0
        """
        return max(1 - self.unexplained_ns / self.total_ns, 0.0) if self.total_ns > 0 else 1.0


def has_steps(graph: Graph) -> bool:
    """Whether the window is of steps; else it is of all that was recorded."""
    steps = int(np.count_nonzero(np.diff(graph.step_first)))
    return steps > 1 or (steps == 1 and len(graph.opening) > 0)


def steady_steps(graph: Graph) -> int:
    """How many steps the window holds; 1 without step marks."""
    steps = len(graph.step_first) - 1
    return max(steps - (3 if steps >= FEWEST_TO_DROP else 1), 1)


def _ends_of_steps(graph: Graph, played: Played) -> NDArray[np.int64]:
    """When each step's last node ended."""
    filled = np.diff(graph.step_first) > 0
    if not filled.any():
        return np.zeros(0, np.int64)
    return np.maximum.reduceat(played.end[graph.step_nodes], graph.step_first[:-1][filled])


def step_lengths_ns(graph: Graph, played: Played) -> NDArray[np.int64]:
    """The duration of each steady step, from the end of the one before it to its own end.

    In a short recording without device events the first step counts too, from its begin.
    """
    ends = np.maximum.accumulate(_ends_of_steps(graph, played))
    if len(ends) >= FEWEST_TO_DROP:
        return np.diff(ends[1:-1])
    if len(ends) and len(graph.opening) and not (graph.kind == NodeKind.DEVICE).any():
        return np.diff(ends, prepend=_begin_of_step(graph, played))
    return np.diff(ends)


def window_ns(graph: Graph, played: Played) -> tuple[int, int]:
    """Begin and end of the window: from the end of the first steady step before it to the end of the last one.

    A single step's window runs from its begin to its end. Without steps it spans all device events, or all events if
    there are none.
    """
    ends = _ends_of_steps(graph, played)
    if len(ends) > 1:
        # Steps may end in another order than they began; a step is not over before those before it are.
        ends = np.maximum.accumulate(ends)
        steady = slice(1, -1) if len(ends) >= FEWEST_TO_DROP else slice(None)
        return int(ends[steady][0]), int(ends[steady][-1])
    if len(ends) == 1 and len(graph.opening):
        return min(_begin_of_step(graph, played), int(ends[0])), int(ends[0])
    if not len(played.start):
        return 0, 0
    outcome = _outcome(graph)
    return int(played.start[outcome].min()), int(played.end[outcome].max())


def _begin_of_step(graph: Graph, played: Played) -> int:
    """The begin of the only step: its first device event, as in its ledger; on a CPU its mark.

    Earlier host work may have been hidden behind the step before, which was not recorded.
    """
    own = graph.step_nodes[graph.kind[graph.step_nodes] == NodeKind.DEVICE]
    return int(played.start[own].min() if len(own) else played.start[graph.opening].min())


def _outcome(graph: Graph) -> NDArray[np.intp]:
    """The nodes that represent a recording without steps: device events, if there are any."""
    device = np.flatnonzero(graph.kind == NodeKind.DEVICE)
    return device if len(device) else np.arange(len(graph.start))


def length_ns(graph: Graph, played: Played) -> int:
    """How long the window takes."""
    begin, end = window_ns(graph, played)
    return end - begin


def lanes_of(graph: Graph, nodes: Mask) -> Lanes:
    """Some nodes lane by lane, and where each lane's begin."""
    rows = np.flatnonzero(nodes)
    rows = rows[np.argsort(graph.lane[rows], kind="stable")]
    return rows, np.flatnonzero(np.diff(graph.lane[rows], prepend=-1))


def longest_ns(lanes: Lanes, durations: NDArray[np.int64]) -> int:
    """The sum over the lane that has most to do."""
    nodes, first = lanes
    return int(np.add.reduceat(durations[nodes], first).max()) if len(nodes) else 0


def busy_ns(graph: Graph, rows: NDArray[np.intp], begin: int, end: int) -> int:
    """The time between two instants in which at least one of some nodes ran, as recorded; ``rows`` are by start."""
    starts = np.maximum(graph.start[rows], begin)
    ends = np.minimum(graph.start[rows] + graph.duration[rows], end)
    reached = np.maximum.accumulate(np.append(begin, ends))[:-1]
    return int(np.maximum(ends - np.maximum(starts, reached), 0).sum())


def speedup(graph: Graph, base: Played, change: Change) -> float:
    """How many times faster the window becomes with a change."""
    before, after = length_ns(graph, base), length_ns(graph, play(graph, change))
    return before / max(after, 1) if before > 0 else 1.0


def critical_path(graph: Graph, played: Played) -> NDArray[np.int64]:
    """The nodes that decided the end of the window, from its end back to its beginning."""
    if not len(played.end):
        return np.zeros(0, np.int64)
    begin, end = window_ns(graph, played)
    candidates = graph.step_nodes if has_steps(graph) else _outcome(graph)
    candidates = candidates[played.end[candidates] <= end]
    node = int(candidates[np.argmax(played.end[candidates])])
    # One step back for every node: a view of memory is several times as fast to walk as an array.
    source = np.append(graph.source, 0).astype(np.int64)
    before = np.where(played.decided_by >= 0, source[played.decided_by], -1)
    before[played.start <= begin] = -1
    step = np.ascontiguousarray(before, np.int64).data
    path = []
    while node >= 0:
        path.append(node)
        node = step[node]
    return np.array(path, np.int64)


_HOST_PARTS = {
    HostState.NONE: "python",
    HostState.PYTHON: "python",
    HostState.DISPATCH: "dispatch",
    HostState.LAUNCH: "launch",
    HostState.SYNC: "sync",
    HostState.ALLOCATOR: "allocator",
    HostState.INPUT: "input",
    HostState.GC: "gc",
    HostState.COMMUNICATION: "communication",
}


def path_parts(graph: Graph, played: Played, path: NDArray[np.int64]) -> dict[str, int]:
    """Nanoseconds of a critical path by kind: device classes, host states, latency, and the unexplained rest.

    The parts add up to the window. Where the path begins before it, or overlaps itself (events of a stream that
    overlap), that part is cut off, and the rest counts as ``unexplained``.
    """
    begin, end = window_ns(graph, played)
    start = np.maximum(played.start[path], begin)
    until = np.clip(played.end[path], begin, end)
    # From the end backwards: an instant belongs to the node that runs then, or to the wait of the node after it.
    cursor = np.minimum.accumulate(np.append(end, start[:-1])) if len(path) else np.zeros(0, np.int64)
    own = np.maximum(np.minimum(until, cursor) - start, 0)
    gaps = np.maximum(cursor - until, 0)
    wait = np.append(gaps[1:], 0)
    kind, state = graph.kind[path], graph.state[path]
    on_device = kind == NodeKind.DEVICE
    parts: dict[str, int] = {}
    for of_kind in np.unique(kind).tolist():
        for of_state in np.unique(state[kind == of_kind]).tolist():
            name = _part(of_kind, of_state)
            parts[name] = parts.get(name, 0) + int(own[(kind == of_kind) & (state == of_state)].sum())
    latency = on_device & (wait <= LATENCY_NS)
    parts["latency"] = int(wait[latency].sum())
    parts["unexplained"] = int(wait[~latency].sum())
    parts["unexplained"] += (end - begin) - sum(parts.values())
    return {name: ns for name, ns in sorted(parts.items(), key=lambda item: (-item[1], item[0])) if ns > 0}


def _part(kind: int, state: int) -> str:
    if kind == NodeKind.DEVICE:
        return CLASSES[state]
    return _HOST_PARTS[HostState(state)] if kind == NodeKind.HOST else "communication"


def fidelity(graph: Graph, played: Played, path: NDArray[np.int64]) -> Fidelity:
    """The step's length and the waiting on the critical path that no edge explains."""
    waiting = graph.delay[path]
    # A node without any edge keeps its start: its dependencies are unknown.
    rooted = played.decided_by[path] < 0
    since, _ = window_ns(graph, played)
    waiting = np.where(rooted, np.maximum(played.start[path] - since, 0), waiting)
    on_device = graph.kind[path] == NodeKind.DEVICE
    explained = ~rooted & on_device & (waiting <= LATENCY_NS)
    return Fidelity(length_ns(graph, played), int(waiting[~explained].sum()), graph.dropped_edges)


__all__ = [
    "EdgeKind",
    "Fidelity",
    "Lanes",
    "busy_ns",
    "critical_path",
    "fidelity",
    "has_steps",
    "lanes_of",
    "length_ns",
    "longest_ns",
    "path_parts",
    "speedup",
    "steady_steps",
    "window_ns",
]
