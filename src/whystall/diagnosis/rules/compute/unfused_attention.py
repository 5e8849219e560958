"""Attention written out: the matrix of scores goes through memory several times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.attention_scores import score_calls, score_calls_by_order, written_by_torch
from whystall.diagnosis.detectors.fused_attention import large_scores
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.kernels import MATRIX_PRODUCTS, REACHED, durations, shortened
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.trace.columns import distinct
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_LEFT_ON_CPU: Final = CAUSE.threshold("left_on_cpu")
_UNSURE_ON_CPU: Final = CAUSE.threshold("unsure_on_cpu")
_UNSURE_IF_LARGE: Final = CAUSE.threshold("unsure_if_large")
_LARGE_BYTES: Final = CAUSE.threshold("large_bytes")
_ENGINE_LEFT: Final = CAUSE.threshold("engine_left")
_LEFT_AT_MOST: Final = CAUSE.threshold("left_at_most")
# Fused attention may be faster still by this factor.
_FASTER: Final = 0.75
_MOST_BEFORE: Final = int(CAUSE.threshold("most_before"))
_MOST_AFTER: Final = int(CAUSE.threshold("most_after"))
_PRODUCTS_LEFT: Final = CAUSE.threshold("products_left")
_LEAST_SCORES: Final = int(CAUSE.threshold("least_scores"))
_WORTH_ANOTHER_MODEL: Final = CAUSE.threshold("worth_another_model")
_DROPOUT: Final = ("aten::dropout", "aten::native_dropout", "aten::bernoulli_")
_MASKING: Final = ("aten::add", "aten::add_")
_HIDING: Final = ("aten::masked_fill", "aten::masked_fill_", "aten::where")
_OF_TORCH: Final = "multi_head_attention_forward"


def in_trace(case: Case) -> Iterator[Replayed]:
    """Operators that pass over tensors as large as those of the run's softmaxes."""
    for rank in case.ranks:
        yield from _with_scores(case, rank, score_calls(rank, _LEAST_SCORES), confidence=0.9)


def in_trace_without_sizes(case: Case) -> Iterator[Replayed]:
    """Operators between two batched products with a softmax in between."""
    for rank in case.ranks:
        if rank.on_device and not rank.analysis.signals.get("shapes"):
            yield from _with_scores(
                case,
                rank,
                score_calls_by_order(rank, most_before=_MOST_BEFORE, most_after=_MOST_AFTER),
                confidence=0.75,
            )


def _with_scores(case: Case, rank: RankCase, scores: Mask, *, confidence: float) -> Iterator[Replayed]:
    if not scores.any():
        return
    products = rank.trace.operators["name"].cast(str).is_in(list(MATRIX_PRODUCTS)).to_numpy()
    passes = case.work_of(rank, scores & ~products)
    if passes.any():
        yield replace(_without_passes(case, rank, scores, scores & products, passes), confidence=confidence)


def _without_passes(case: Case, rank: RankCase, scores: Mask, products: Mask, passes: Mask) -> Replayed:
    recorded = case.replayed.duration
    best = np.where(passes, 0, recorded)
    left = 0.0 if rank.on_device else _LEFT_ON_CPU
    large = None if rank.on_device else large_scores(rank, scores, products, _LARGE_BYTES)
    if large is not None:
        left, freed = 0.0, case.work_of(rank, large.freed)
        fused, most = ((recorded * share).astype(np.int64) for share in (large.left, large.left * _FASTER))
        computed = case.work_of(rank, products)
        best = np.where(freed, 0, np.where(computed, most, best))
        recorded = np.where(freed, (recorded * _ENGINE_LEFT).astype(np.int64), np.where(computed, fused, recorded))
    duration = np.where(passes, (recorded * left).astype(np.int64), recorded)
    if rank.on_device:
        duration = np.minimum(duration, _at_good_rate(case, rank, products, 1.0))
        best = np.minimum(best, _at_good_rate(case, rank, products, REACHED, unknown=_PRODUCTS_LEFT))
    floor = Change(duration=np.where(passes, (recorded * _LEFT_AT_MOST).astype(np.int64), recorded))
    per_step = case.time_of(passes)
    touches = case.work_of(rank, scores)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time("passes over the scores of attention", per_step, case.events_of(touches), per=case.per),
            evidence.count("of them", count_per_step(case, passes), per=case.per),
        ),
        removal=Change(duration=duration),
        floor=floor if rank.on_device else None,
        ceiling=Change(duration=best),
        method="replay: the products alone, at the rate of good kernels, without the passes over the scores",
        code=code_of(case, touches),
        ranks=(rank.rank,),
        uncertainty=0.2 if rank.on_device else _UNSURE_IF_LARGE if large is not None else _UNSURE_ON_CPU,
        confidence=0.9,
        rivals=("compute.fusible", "compute.layout-conversion"),
        detail="torch's own scaled dot product attention falls back to that" if written_by_torch(rank).any() else "",
        remedy=_remedy(rank, scores),
        least_share=_WORTH_ANOTHER_MODEL if _falls_back_by_dropout(rank) else 0.0,
    )


def _remedy(rank: RankCase, scores: Mask) -> Remedy:
    """The remedy for this job: it may call scaled dot product attention already, or hide scores by a mask."""
    called = written_by_torch(rank)
    names = rank.trace.operators["name"].cast(str).to_numpy()
    if called.any():
        return CAUSE.remedies["dropout_on_cpu" if _falls_back_by_dropout(rank) else "no_fused_form"]
    masked = np.isin(names[scores], (*_MASKING, *_HIDING)).any()
    patch = f"F.scaled_dot_product_attention(q, k, v{', attn_mask=mask' if masked else ''})"
    text = CAUSE.remedy
    if any(_OF_TORCH in name for name in distinct(rank.trace.python_functions["name"])):
        text += " Call torch's nn.MultiheadAttention with need_weights=False."
    if np.isin(names[scores], _HIDING).any():
        text += " A mask that only hides what comes later is is_causal=True."
    return Remedy(text=text, patch=patch, risk=CAUSE.risk)


def _falls_back_by_dropout(rank: RankCase) -> bool:
    """Whether torch writes attention out since it drops scores, for which a CPU has no fused form."""
    names = rank.trace.operators["name"].cast(str).to_numpy()
    return not rank.on_device and bool(np.isin(names[written_by_torch(rank)], _DROPOUT).any())


def _at_good_rate(
    case: Case, rank: RankCase, operators: Mask, factor: float, *, unknown: float = 1.0
) -> NDArray[np.int64]:
    """The durations of nodes, with products of some operators at good kernels' rate, times a factor.

    ``unknown`` is the share of the time that is left of products whose FLOPs are not known.
    """
    work = rank.workings
    duration = durations(rank)
    best = work.peak.half_tflops if work.peak is not None else None
    flops = work.flops()
    if not best:
        flops = np.zeros(len(duration))
    target = np.where(flops > 0, flops / ((best or 1.0) * 1e12 * REACHED) * 1e9 * factor, duration * unknown)
    operator = rows_of(rank.trace.device_events["operator"])
    chosen = (operator >= 0) & operators[np.maximum(operator, 0)]
    changed = shortened(case, rank, chosen, target).duration
    return case.replayed.duration if changed is None else changed


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "operators", "shapes")),
        Finder(in_trace_without_sizes, ("trace", "operators", "device_events")),
    ),
)
