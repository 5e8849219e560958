"""A model in training mode that nothing trains: dropout draws for each answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.attention_scores import written_by_torch
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.kernels import MATRIX_PRODUCTS
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.trace.columns import matching

CAUSE: Final = cause_beside(__name__)
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_LEFT_OF_ATTENTION: Final = CAUSE.threshold("left_of_attention")
_DROPS: Final = frozenset({"aten::dropout", "aten::alpha_dropout", "aten::feature_dropout", "aten::native_dropout"})
_DRAWS: Final = frozenset({"aten::bernoulli_", "aten::native_dropout"})


def in_trace(case: Case) -> Iterator[Replayed]:
    """Dropout that draws, where there is neither a backward pass nor an optimizer."""
    for rank in case.ranks:
        drops = _drawing(rank, watched=bool(case.runs))
        if not drops.any():
            continue
        nodes = case.work_of(rank, drops | rank.workings.tree.below(drops))
        per_step = case.time_of(nodes)
        if per_step < _LEAST_SHARE * case.step_ns:
            continue
        attention = _written_out(rank, drops)
        expected, most = (
            case.operator_values(rank, np.where(attention, left, 1.0), 1.0) for left in (_LEFT_OF_ATTENTION, 0.0)
        )
        passes = case.work_of(rank, attention)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("drawing for dropout, and dropping", per_step, case.events_of(nodes), per=case.per),
                evidence.count("draws", count_per_step(case, case.work_of(rank, drops)), per=case.per),
            ),
            removal=case.without(nodes | passes, np.where(nodes, 0.0, expected)),
            floor=case.without(nodes),
            ceiling=case.without(nodes | passes, np.where(nodes, 0.0, most)),
            method="replay: without dropout, and with fused attention where torch writes it out for dropout",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.1,
            confidence=0.9,
            rivals=("compute.unfused-attention", "host.small-operators"),
        )


def _drawing(rank: RankCase, *, watched: bool) -> Mask:
    """The calls of dropout that draw, where nothing is trained.

    A recording by hand may hold a training step's forward pass alone, for which autograd keeps what a backward pass
    will need.
    """
    table = rank.trace.operators
    nothing = np.zeros(len(table), np.bool_)
    if rank.trains or len(rank.optimizer_steps[0]):
        return nothing
    draws = matching(table["name"], _DRAWS.__contains__)
    drops = matching(table["name"], _DROPS.__contains__)
    if not watched and (table["sequence"].fill_null(-1).to_numpy() >= 0).any():
        return nothing
    return drops & (draws | rank.workings.tree.around(draws))


def _written_out(rank: RankCase, drops: Mask) -> Mask:
    """The passes over scores of attention that torch writes out since it is called with dropout."""
    written = written_by_torch(rank)
    if not (written & drops).any():
        return np.zeros(len(written), np.bool_)
    products = matching(rank.trace.operators["name"], MATRIX_PRODUCTS.__contains__)
    return written & ~products & ~rank.workings.tree.below(drops) & ~drops


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators")),))
