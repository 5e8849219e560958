"""Autograd's anomaly detection, left on: a stack is written down for each operator, and each gradient searched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_LEAST_SEARCHED: Final = CAUSE.threshold("least_searched")
_LEAST_STACK_NS: Final = CAUSE.threshold("least_stack_ns")
_ENGINE: Final = "autograd::engine::evaluate_function"
# The engine's own checks of each gradient in this mode, beside the operator that made it.
_SEARCHES: Final = frozenset({"aten::isnan", "aten::_is_any_true", "aten::item", "aten::any"})


def in_trace_of_a_cpu(case: Case) -> Iterator[Replayed]:
    """Searches of gradients that the engine makes itself, and the time of stacks added to forward operators."""
    for rank in case.ranks:
        searches = _searches(rank)
        if not searches.any():
            continue
        stack_ns, forward = _stacks(rank)
        nodes = case.work_of(rank, searches | forward)
        left = _left(case, rank, searches, forward, stack_ns)
        saved = (case.replayed.duration * (1 - left))[case.in_window(nodes)].sum()
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=int(saved) // max(case.steps, 1),
            evidence=(
                evidence.count("searches for what is no number", _per_step(case, rank, searches), per=case.per),
                evidence.time("in them", case.time_of(case.work_of(rank, searches)), per=case.per),
                evidence.time("a forward operator takes for its stack", round(stack_ns)),
            ),
            removal=case.without(nodes, left),
            floor=case.without(nodes, _left(case, rank, searches, forward, stack_ns / 3)),
            ceiling=case.without(nodes),
            method="replay: without the searches, and without what writing a stack takes in each operator",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.4,
            confidence=0.9,
            rivals=("host.small-operators", "host.python"),
        )


def _searches(rank: RankCase) -> Mask:
    """The searches, if nearly each call of the engine's makes one."""
    table = rank.trace.operators
    nothing = np.zeros(len(table), np.bool_)
    if table.is_empty():
        return nothing
    calls = matching(table["name"], lambda name: name.startswith(_ENGINE) and "AccumulateGrad" not in name)
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


def _left(case: Case, rank: RankCase, searches: Mask, forward: Mask, stack_ns: float) -> NDArray[np.float64]:
    own = np.maximum(rank.trace.operators["self_ns"].to_numpy(), 1)
    left = np.where(searches, 0.0, np.where(forward, np.maximum(1 - stack_ns / own, 0.05), 1.0))
    return case.operator_values(rank, left, 1.0)


def _per_step(case: Case, rank: RankCase, searches: Mask) -> float:
    begin, end = case.window_on(rank)
    at = rank.trace.operators["ts_ns"].to_numpy()
    named = matching(rank.trace.operators["name"], lambda name: name == "aten::isnan")
    return int(np.count_nonzero(searches & named & (at >= begin) & (at < end))) / max(case.steps, 1)


RULE = Rule(CAUSE, (Finder(in_trace_of_a_cpu, ("trace", "no_device", "operators", "shapes")),))
