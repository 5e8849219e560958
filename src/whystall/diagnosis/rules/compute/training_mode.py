"""A model in training mode that nothing trains: dropout draws, and batch normalisation works out statistics."""

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
from whystall.json_text import parse_json
from whystall.replay.graph import Mask
from whystall.trace.columns import judged, matching

CAUSE: Final = cause_beside(__name__)
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_LEFT_OF_ATTENTION: Final = CAUSE.threshold("left_of_attention")
_NORMALISED: Final = CAUSE.threshold("normalised")
_NORMALISED_AT_MOST: Final = CAUSE.threshold("normalised_at_most")
# Arguments of aten::batch_norm(input, weight, bias, running_mean, running_var, training, …).
_RUNNING_MEAN: Final = 3
_TRAINING: Final = 5
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


def of_statistics(case: Case) -> Iterator[Replayed]:
    """Batch normalisation by the statistics of each batch, where nothing is trained and no loss is worked out."""
    for rank in case.ranks:
        normalises = _by_the_batch(rank)
        if not normalises.any():
            continue
        nodes = case.work_of(rank, normalises | rank.workings.tree.below(normalises))
        per_step = case.time_of(nodes)
        if per_step < _LEAST_SHARE * case.step_ns:
            continue
        # With gradients switched on a recording by hand may be the forward pass of a training step.
        kept = bool((rank.trace.operators["sequence"].fill_null(-1).to_numpy() >= 0).any())
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("batch normalisation with training=True", per_step, case.events_of(nodes), per=case.per),
                evidence.count("such calls in the recording", int(np.count_nonzero(normalises))),
                evidence.text("backward passes, optimizer steps and losses", "none were recorded"),
            ),
            removal=case.without(nodes, _NORMALISED),
            floor=case.without(nodes, _NORMALISED_AT_MOST),
            ceiling=case.without(nodes),
            method="replay: normalisation by learned statistics, at most folded into the convolutions before it",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.7 if kept and not case.runs else 0.9,
            rivals=("compute.fusible",),
        )


def _by_the_batch(rank: RankCase) -> Mask:
    """The calls of batch normalisation that compute statistics although they have learned ones."""
    table = rank.trace.operators
    nothing = np.zeros(len(table), np.bool_)
    if rank.trains or len(rank.optimizer_steps[0]) or matching(table["name"], _is_loss).any():
        return nothing
    calls = matching(table["name"], "aten::batch_norm".__eq__)
    calls &= ~rank.workings.tree.below(matching(table["name"], "aten::instance_norm".__eq__))
    rows = np.flatnonzero(calls)
    nothing[rows] = judged(table.select("input_dims", "concrete_inputs")[rows], _has_statistics)
    return nothing


def _is_loss(name: str) -> bool:
    return "loss" in name or "cross_entropy" in name


def _has_statistics(dims: str | None, values: str | None) -> bool:
    """Whether a call has running statistics, and trains nevertheless."""
    try:
        return bool(parse_json(dims or "")[_RUNNING_MEAN]) and parse_json(values or "")[_TRAINING] == "True"
    except (ValueError, TypeError, IndexError, KeyError):
        return False


def _drawing(rank: RankCase, *, watched: bool) -> Mask:
    """The calls of dropout that draw, where nothing is trained.

    A manual recording may hold a training step's forward pass alone, for which autograd keeps tensors of a backward
    pass.
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


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "operators")),
        Finder(of_statistics, ("trace", "operators", "shapes")),
    ),
)
