"""Autograd's anomaly detection, left on: a stack is written down for each operator, and each gradient searched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.host_calls import waits_before
from whystall.diagnosis.detectors.kernels import close_up
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask, NodeKind
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.vocabulary.autograd import EVALUATES

CAUSE: Final = cause_beside(__name__)
_LEAST_SEARCHED: Final = CAUSE.threshold("least_searched")
_LEAST_STACK_NS: Final = CAUSE.threshold("least_stack_ns")
_LEAST_LEFT: Final = 0.05
"""The share of a forward operator's own time that is surely left."""
# The engine's own checks of each gradient in this mode, beside the operator that made it.
_SEARCHES: Final = frozenset({"aten::isnan", "aten::_is_any_true", "aten::item", "aten::any"})


def in_trace(case: Case) -> Iterator[Replayed]:
    """Searches of gradients that the engine makes itself, and the time of stacks added to forward operators."""
    for rank in case.ranks:
        searches = _searches(rank)
        if not searches.any():
            continue
        stack_ns, forward = _stacks(rank)
        nodes = case.own_time_of(rank, searches | forward) | case.work_of(rank, searches)
        removal = _without(case, rank, searches, forward, stack_ns)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=case.time_of(nodes) - _left_ns(case, nodes, removal),
            evidence=(
                evidence.count("searches for what is no number", _per_step(case, rank, searches), per=case.per),
                evidence.time("in them", case.time_of(case.work_of(rank, searches)), per=case.per),
                evidence.time("a forward operator takes for its stack", round(stack_ns)),
            ),
            removal=removal,
            floor=_without(case, rank, searches, forward, stack_ns / 3),
            ceiling=_without(case, rank, searches, forward, np.inf),
            method="replay: without the searches and their waits, and without what writing a stack takes in each call",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.4,
            confidence=0.9,
            rivals=("host.small-operators", "host.python", "host.sync", "host.launch-bound", "compute.redundant-work"),
        )


def _without(case: Case, rank: RankCase, searches: Mask, forward: Mask, stack_ns: float) -> Change:
    """Without the searches, what they launch and where they wait, and with less time in forward operators."""
    graph = case.replayed
    own = np.maximum(rank.trace.operators["self_ns"].to_numpy(), 1)
    left = np.where(forward, np.maximum(1 - stack_ns / own, _LEAST_LEFT if np.isfinite(stack_ns) else 0.0), 1.0)
    first, last = rank.offsets["operators"]
    rows = case.rows(rank, NodeKind.HOST)
    mine = rows[(graph.event[rows] >= first) & (graph.event[rows] < last)]
    kept = np.ones(len(graph.start))
    kept[mine] = left[graph.event[mine] - first]
    gone = case.host_within_operators(rank, searches) | case.work_of(rank, searches)
    kept[gone] = 0.0
    return replace(
        case.without(kept < 1, kept),
        lag=close_up(case, gone, 0),
        removed_edges=waits_before(case, gone),
    )


def _left_ns(case: Case, nodes: Mask, removal: Change) -> int:
    """The time per step that a change leaves of some nodes."""
    duration = case.replayed.duration if removal.duration is None else removal.duration
    return int(duration[case.in_window(nodes)].sum()) // max(case.steps, 1)


def _searches(rank: RankCase) -> Mask:
    """The searches, if nearly each call of the engine's makes one."""
    table = rank.trace.operators
    nothing = np.zeros(len(table), np.bool_)
    if table.is_empty():
        return nothing
    calls = matching(table["name"], lambda name: name.startswith(EVALUATES) and "AccumulateGrad" not in name)
    parent = rows_of(table["parent"])
    beside = (parent >= 0) & calls[np.maximum(parent, 0)]
    found = beside & matching(table["name"], _SEARCHES.__contains__)
    searched = np.unique(parent[beside & matching(table["name"], lambda name: name == "aten::isnan")])
    if len(searched) < _LEAST_SEARCHED * max(int(np.count_nonzero(calls)), 1):
        return nothing
    return found | rank.workings.tree.below(found)


def _stacks(rank: RankCase) -> tuple[float, Mask]:
    """The time of writing a stack, by operators without arithmetic, and the forward operators that write one."""
    table = rank.trace.operators
    own = table["self_ns"].to_numpy()
    forward = (table["sequence"].fill_null(-1).to_numpy() >= 0) & (own >= _LEAST_STACK_NS)
    forward &= ~rank.backward
    idle = own[forward & ~rank.workings.work.counted]
    return (float(np.median(idle)) if len(idle) else 0.0), forward


def _per_step(case: Case, rank: RankCase, searches: Mask) -> float:
    begin, end = case.window_on(rank)
    at = rank.trace.operators["ts_ns"].to_numpy()
    named = matching(rank.trace.operators["name"], lambda name: name == "aten::isnan")
    return int(np.count_nonzero(searches & named & (at >= begin) & (at < end))) / max(case.steps, 1)


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "operators", "device_events")),
        Finder(in_trace, ("trace", "operators", "shapes", "no_device")),  # an operator's own time may be arithmetic
    ),
)
