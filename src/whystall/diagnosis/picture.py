"""Where in a step a cause is at work: what its remedy would change, in the step that its rank's timeline draws."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.candidate import Replayed, Valued
from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import InStep
from whystall.replay.graph import Change, Graph, Mask

# A picture is some hundreds of points wide: what lies closer than one of them is drawn as one.
_POINTS: Final = 400
_MOST_MARKS: Final = 120


def in_step(case: Case, candidate: Valued) -> InStep | None:
    """The marks of a replayed cause; ``None`` where its rank has no timeline, or the cause nothing in that step."""
    if not isinstance(candidate, Replayed) or candidate.removal is None or not candidate.ranks:
        return None
    rank = next((one for one in case.ranks if one.rank == candidate.ranks[0]), None)
    timeline = next(iter(rank.analysis.timelines), None) if rank is not None else None
    if rank is None or timeline is None or timeline.window_ns <= 0:
        return None
    graph = case.replayed
    nodes = np.flatnonzero(_changed(graph, candidate.removal) & (graph.rank == rank.rank) & (graph.event >= 0))
    begin = graph.own_times(rank.rank, graph.start[nodes]) - rank.analysis.origin_ns - timeline.start_ns
    end = begin + graph.duration[nodes]
    begin, end = np.maximum(begin, 0), np.minimum(end, timeline.window_ns)
    marks = _merged(begin[begin < end], end[begin < end], max(timeline.window_ns // _POINTS, 1))
    if not marks:
        return None
    return InStep(rank=rank.rank, device=timeline.device, step=timeline.step, window_ns=timeline.window_ns, marks=marks)


def _changed(graph: Graph, change: Change) -> Mask:
    """The nodes that are shorter, or begin earlier after what they wait for, under a change."""
    out = np.zeros(len(graph.start), np.bool_)
    if change.duration is not None:
        out |= change.duration < graph.duration
    if change.delay is not None:
        out |= change.delay < graph.delay
    return out


def _merged(begin: NDArray[np.int64], end: NDArray[np.int64], close: int) -> list[tuple[int, int]]:
    """Intervals in order, as begin and length; neighbours that are so close are one, and the longest are kept."""
    order = np.argsort(begin, kind="stable")
    out: list[tuple[int, int]] = []
    for low, high in zip(begin[order].tolist(), end[order].tolist(), strict=True):
        if out and low - sum(out[-1]) <= close:
            out[-1] = (out[-1][0], max(high, sum(out[-1])) - out[-1][0])
        else:
            out.append((low, high - low))
    longest = sorted(out, key=lambda mark: (-mark[1], mark[0]))[:_MOST_MARKS]
    return sorted(longest)
