"""The lengthening of steps by recording, from the run's unrecorded steps, and durations without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.host_states import HostState
from whystall.analysis.run_results import RunSummary
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Change, Graph, Mask, NodeKind, play
from whystall.replay.outcome import length_ns

_FEWEST_RECORDED: Final = 3
_ENOUGH_RECORDED: Final = 5
_ONE_NS: Final = 10_000
"""Recording one event takes the host no longer: on an H200's host it took 2 to 5 us of each, shapes recorded."""
_LONGEST_NS: Final = 2 * _ONE_NS
"""A node lies between two events."""
# Largest cost of recording a call of an operator. In thirty jobs' recordings on two cores most with a thousand calls a
# step became longer by 0.6 to 5 us for each; those with few by more, for which there were other reasons as well.
_ONE_ON_CPU_NS: Final = 5_000
# A step this many times as long is of another kind.
_OTHER_STEPS: Final = 2.5
_WAITS: Final = (HostState.SYNC, HostState.INPUT, HostState.COMMUNICATION)
_LEAST_LEFT: Final = 0.2
"""Minimum share of a call's recorded host time that remains without recording."""
_NEAR: Final = 0.01
_HALVINGS: Final = 14
USUAL_NS: Final = 2_000
"""In eight jobs on an H200's host (torch 2.11, shapes recorded) it was 1.9 to 3.0 us of each node, in one 4.7."""


@dataclass(frozen=True, slots=True)
class Lengthened:
    """A recorded step of a rank and one that was not, in the median."""

    recorded_ns: int
    usual_ns: int
    most_ns: int
    """Largest cost of recording a step's events."""

    @property
    def ratio(self) -> float:
        """The ratio of a step with recording to one without."""
        return self.recorded_ns / max(self.usual_ns, self.recorded_ns - self.most_ns, 1)


def lengthened(run: RunSummary, rank: RankCase) -> Lengthened | None:
    """The lengthening of a rank's steps by recording; ``None`` unless all recorded ones are longer than usual.

    A few recorded steps must be longer than nearly all others.
    """
    steps = rank.trace.steps
    if len(steps) < _FEWEST_RECORDED:
        return None
    recorded = np.diff(steps["ts_ns"].to_numpy())
    # In a job whose steps became longer, the others are those next to the window.
    beside = max((max(window.lead_in_ns, window.after_ns) for window in run.windows[-1:]), default=0)
    longer_than = run.p90_ns if len(recorded) < _ENOUGH_RECORDED else run.median_ns
    if int(recorded.min()) <= max(longer_than, beside):
        return None
    tables = (rank.trace.operators, rank.trace.runtime_calls, rank.trace.python_functions)
    events = sum(int(table["ts_ns"].is_between(steps["ts_ns"].min(), steps["ts_ns"].max()).sum()) for table in tables)
    return Lengthened(int(np.median(recorded)), max(run.median_ns, beside), _ONE_NS * events // len(recorded))


def lengthening(runs: Sequence[RunSummary], ranks: Sequence[RankCase]) -> float | None:
    """The ratio by which recording lengthened the steps of a job with accelerators only; ``None`` where unknown.

    It is 1 where only some ranks show it: others that they wait for do not.
    """
    by_rank = {run.rank: run for run in runs}
    if not ranks or not all(one.on_device and one.rank in by_rank for one in ranks):
        return None
    found = [lengthened(by_rank[one.rank], one) for one in ranks]
    ratios = [one.ratio for one in found if one is not None]
    return float(np.median(ratios)) if len(ratios) == len(ranks) else 1.0


def added_on_cpu(run: RunSummary, rank: RankCase, window: tuple[int, int], step_ns: int, steps: int) -> int:
    """By how much a step of a job without an accelerator was longer because it was recorded."""
    if step_ns > _OTHER_STEPS * run.mean_ns:
        return 0
    at = rank.trace.operators["ts_ns"].to_numpy()
    calls = int(((at >= window[0]) & (at < window[1])).sum()) / max(steps, 1)
    return int(min(max(step_ns - run.mean_ns, 0), _ONE_ON_CPU_NS * calls))


def scaled(graph: Graph, change: Change, share: NDArray[np.float64]) -> Change:
    """A change of a graph whose nodes take a share of their time each."""
    durations = graph.duration if change.duration is None else change.duration
    return replace(change, duration=(durations * share).astype(np.int64))


def as_unrecorded(graph: Graph, startup: Mask, ratio: float) -> NDArray[np.float64]:
    """The share of each node's recorded time that remains where a step takes ``ratio`` of a recorded one.

    A profiler costs the host about the same for each event: that is subtracted from each node in which it works, and
    device time stays. It is the least cost that brings the replay to that length, or as near as the devices' work
    permits, and the host alone to the same ratio. The cost hidden behind devices that are always busy is assumed equal
    to the cost where it was visible, unless the length of the steps contradicts that.
    """

    def length(cost: float) -> int:
        return length_ns(graph, play(graph, scaled(graph, Change(), cheaper(graph, startup, cost))))

    def on_host(cost: float) -> int:
        alone = cheaper(graph, startup, cost)
        alone[graph.kind == NodeKind.DEVICE] = 0.0
        return length_ns(graph, play(graph, scaled(graph, Change(), alone)))

    recorded = length(0.0)
    least = max(recorded * ratio, length(_LONGEST_NS) * (1 + _NEAR))
    # A step takes at least as long as its host's work.
    of_host = max(min(on_host(0.0), recorded) * ratio, on_host(_LONGEST_NS) * (1 + _NEAR))
    hides = _cost(length, recorded * ratio * (1 - _NEAR), USUAL_NS)
    return cheaper(graph, startup, max(_cost(length, least), _cost(on_host, of_host), hides))


def cheaper(graph: Graph, startup: Mask, cost_ns: float) -> NDArray[np.float64]:
    """The share of each node's recorded time that remains if recording it cost the host ``cost_ns``."""
    works = (graph.kind == NodeKind.HOST) & ~np.isin(graph.state, _WAITS) & (graph.duration > 0)
    out = np.where(startup, 0.0, 1.0)
    out[works] *= np.maximum(1 - cost_ns / np.maximum(graph.duration[works], 1), _LEAST_LEFT)
    return out


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """The steps of a job with accelerators whose unrecorded length is unknown.

    They are taken to be shorter by the cost of recording elsewhere: a gain is certain only if these steps have it.
    """

    graph: Graph
    share: NDArray[np.float64]
    length_ns: int

    @classmethod
    def of(cls, graph: Graph, startup: Mask) -> Unrecorded:
        """The steps of a replay if each event cost the host `USUAL_NS`."""
        share = cheaper(graph, startup, USUAL_NS)
        return cls(graph, share, length_ns(graph, play(graph, scaled(graph, Change(), share))))

    def saved_by(self, change: Change) -> float:
        """The share of such a step that a change saves."""
        after = length_ns(self.graph, play(self.graph, scaled(self.graph, change, self.share)))
        return max(1 - after / max(self.length_ns, 1), 0.0)


def _cost(length: Callable[[float], int], least: float, most_ns: float = _LONGEST_NS) -> float:
    """The least cost of an event at which a replay is no longer than that; ``most_ns`` where it is longer with each."""
    low, high = 0.0, float(most_ns)
    for _ in range(_HALVINGS):
        # The cost of one event spans orders of magnitude.
        middle = (low + high) / 2 if low else high / 8
        low, high = (low, middle) if length(middle) <= least else (middle, high)
    return high
