"""Where in a step a cause is at work: the time that its remedy would change, in the step of its rank's timeline."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.ledger_spans import ledger_spans
from whystall.analysis.results import Timeline
from whystall.diagnosis.candidate import Candidate, Replayed, Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import InStep
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Change, Graph, Mask

# A picture is some hundreds of points wide: closer marks are drawn as one.
_POINTS: Final = 400
_MOST_MARKS: Final = 120
# The part of a step's ledger that holds the time of a sampled cause.
_LEDGER_PART: Final = {
    "host.python": "idle_python",
    "host.gc": "idle_gc",
    "host.sync": "idle_sync",
    "input.": "idle_input",
}


def in_step(case: Case, candidate: Candidate) -> InStep | None:
    """The marks of a cause; ``None`` where its rank has no timeline, or the cause no time in that step.

    For a replayed cause they are the changes of its remedy; for a sampled one, its time in the ledger of the recorded
    step; for one without a gain, the nodes that show it.
    """
    rank = next((one for one in case.ranks if candidate.ranks and one.rank == candidate.ranks[0]), None)
    timeline = next(iter(rank.analysis.timelines), None) if rank is not None else None
    if rank is None or timeline is None or timeline.window_ns <= 0:
        return None
    if isinstance(candidate, Replayed) and candidate.removal is not None:
        begin, end = _times(case, rank, _changed(case.replayed, candidate.removal))
    elif isinstance(candidate, Standing) and candidate.nodes is not None:
        begin, end = _times(case, rank, candidate.nodes)
    elif (part := _part_of(candidate.cause)) is not None:
        begin, end = _in_ledger(rank, timeline, part)
    else:
        return None
    first = rank.analysis.origin_ns + timeline.start_ns
    begin, end = np.maximum(begin - first, 0), np.minimum(end - first, timeline.window_ns)
    marks = _merged(begin[begin < end], end[begin < end], max(timeline.window_ns // _POINTS, 1))
    if not marks:
        return None
    return InStep(rank=rank.rank, device=timeline.device, step=timeline.step, window_ns=timeline.window_ns, marks=marks)


def _times(case: Case, rank: RankCase, some: Mask) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of nodes of a rank, on its clock."""
    graph = case.replayed
    nodes = np.flatnonzero(some & (graph.rank == rank.rank) & (graph.event >= 0))
    begin = graph.own_times(rank.rank, graph.start[nodes])
    return begin, begin + graph.duration[nodes]


def _part_of(cause: str) -> str | None:
    return next((part for name, part in _LEDGER_PART.items() if cause.startswith(name)), None)


def _in_ledger(rank: RankCase, timeline: Timeline, part: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of a part in the ledger of the drawn step."""
    begin = rank.analysis.origin_ns + timeline.start_ns
    spans = ledger_spans(rank.trace, timeline.device, (begin, begin + timeline.window_ns))
    own = spans.filter(spans["part"] == part)
    at = own["ts_ns"].to_numpy()
    return at, at + own["duration_ns"].to_numpy()


def _changed(graph: Graph, change: Change) -> Mask:
    """The nodes that are shorter, or begin earlier after their dependencies, under a change."""
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
