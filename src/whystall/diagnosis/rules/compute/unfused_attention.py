"""Attention written out: the matrix of scores goes through memory several times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.fused_attention import large_scores
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.kernels import MATRIX_PRODUCTS, REACHED, durations, shortened
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_LEAST_SCORES: Final = int(CAUSE.threshold("least_scores"))
_LEFT_ON_CPU: Final = CAUSE.threshold("left_on_cpu")
_UNSURE_ON_CPU: Final = CAUSE.threshold("unsure_on_cpu")
_UNSURE_IF_LARGE: Final = CAUSE.threshold("unsure_if_large")
_LARGE_BYTES: Final = CAUSE.threshold("large_bytes")
_ENGINE_LEFT: Final = CAUSE.threshold("engine_left")
# Fused attention may be so much faster still.
_FASTER: Final = 0.75
_WORTH_ANOTHER_MODEL: Final = CAUSE.threshold("worth_another_model")
_ATTENTION_MATH: Final = re.compile(r"_scaled_dot_product_attention_math")
_SOFTMAX: Final = ("aten::_softmax", "aten::_safe_softmax", "aten::_softmax_backward_data")
_DROPOUT: Final = ("aten::dropout", "aten::native_dropout", "aten::bernoulli_")
_MASKING: Final = ("aten::masked_fill", "aten::masked_fill_", "aten::where", "aten::add", "aten::add_")
_FALLS_BACK_BY_DROPOUT: Final = (
    "Scaled dot product attention is called, and has no fused form with dropout on a CPU: train without dropout of the "
    "attention (attention_probs_dropout_prob=0.0 or attention_dropout=0.0 in Transformers)."
)
_ANOTHER_MODEL: Final = (
    "Dropout of the attention is a choice of the model's: without it training generalises otherwise."
)
_FALLS_BACK: Final = (
    "Scaled dot product attention is called, and finds no fused form for these tensors: half precision, a head size of "
    "at most 256 that is a multiple of eight, and no mask that needs a gradient have one on GPUs; on CPUs no dropout, "
    "and a mask of two or four dimensions (mask[None] of a mask per head). Allow the fused form alone once: a warning "
    "then says what stands in its way."
)
_ASKS_WHY: Final = "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION): ..."
_BATCHED_PRODUCTS: Final = ("aten::bmm", "aten::baddbmm", "aten::matmul")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Operators that pass over tensors as large as those of the run's softmaxes."""
    for rank in case.ranks:
        scores = _score_calls(rank)
        if not scores.any():
            continue
        products = rank.trace.operators["name"].cast(str).is_in(list(MATRIX_PRODUCTS)).to_numpy()
        passes = case.work_of(rank, scores & ~products)
        if passes.any():
            yield _without_passes(case, rank, scores, scores & products, passes)


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
        best = np.minimum(best, _at_good_rate(case, rank, products, REACHED))
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
        ceiling=Change(duration=best),
        method="replay: the products alone, at the rate of good kernels, without the passes over the scores",
        code=code_of(case, touches),
        ranks=(rank.rank,),
        uncertainty=0.2 if rank.on_device else _UNSURE_IF_LARGE if large is not None else _UNSURE_ON_CPU,
        confidence=0.9,
        rivals=("compute.fusible", "compute.layout-conversion"),
        detail="torch's own scaled dot product attention falls back to that" if _called(rank).any() else "",
        remedy=_remedy(rank, scores),
        least_share=_WORTH_ANOTHER_MODEL if _falls_back_by_dropout(rank) else 0.0,
    )


def _remedy(rank: RankCase, scores: Mask) -> Remedy:
    """What this job can do: it may call scaled dot product attention already, or hide scores by a mask."""
    called = _called(rank)
    names = rank.trace.operators["name"].cast(str).to_numpy()
    if called.any():
        if _falls_back_by_dropout(rank):
            return Remedy(text=_FALLS_BACK_BY_DROPOUT, patch=None, risk=_ANOTHER_MODEL)
        return Remedy(text=_FALLS_BACK, patch=_ASKS_WHY, risk=None)
    masked = np.isin(names[scores], _MASKING).any()
    patch = f"F.scaled_dot_product_attention(q, k, v{', attn_mask=mask' if masked else ''})"
    text = f"{CAUSE.remedy} A mask that only hides what comes later is is_causal=True." if masked else CAUSE.remedy
    return Remedy(text=text, patch=patch, risk=CAUSE.risk)


def _falls_back_by_dropout(rank: RankCase) -> bool:
    """Whether torch writes attention out since it drops scores, for which a CPU has no fused form."""
    names = rank.trace.operators["name"].cast(str).to_numpy()
    return not rank.on_device and bool(np.isin(names[_called(rank)], _DROPOUT).any())


def _called(rank: RankCase) -> Mask:
    """The operator calls in the written-out form of scaled dot product attention, which torch chose."""
    math = matching(rank.trace.operators["name"], _ATTENTION_MATH.search)
    return math | rank.workings.tree.below(math)


def _at_good_rate(case: Case, rank: RankCase, operators: Mask, factor: float) -> NDArray[np.int64]:
    """The durations of nodes, with products of some operators at what good kernels reach, times a factor."""
    work = rank.workings
    duration = durations(rank)
    best = (work.peak.bf16_tflops or work.peak.fp16_tflops) if work.peak is not None else None
    flops = work.flops()
    if not best:
        return case.replayed.duration
    target = np.where(flops > 0, flops / (best * 1e12 * REACHED) * 1e9 * factor, duration)
    operator = rows_of(rank.trace.device_events["operator"])
    chosen = (operator >= 0) & operators[np.maximum(operator, 0)]
    changed = shortened(case, rank, chosen, target).duration
    return case.replayed.duration if changed is None else changed


def _score_calls(rank: RankCase) -> Mask:
    """Operator calls with a tensor [..., rows, columns] of scores.

    It is as large as those of the run's softmaxes, or inside the written-out form of scaled dot product attention.
    """
    table = rank.trace.operators
    out = np.zeros(len(table), np.bool_)
    if table.is_empty():
        return out
    dims = table["input_dims"]
    names = table["name"].cast(str)
    softmaxes = dims.filter(names.is_in(list(_SOFTMAX)).to_numpy())
    sizes = _score_sizes(softmaxes.drop_nulls().unique().cast(str).to_list())
    if sizes:
        batched = names.is_in(list(_BATCHED_PRODUCTS)).to_numpy()
        written = {text: _written(text) for text in dims.filter(batched).drop_nulls().unique().cast(str).to_list()}
        # Words and experts are chosen by softmaxes too: scores are what a batched product wrote.
        sizes &= set(written.values())
        passing = {text: _holds(text, sizes) for text in dims.drop_nulls().unique().cast(str).to_list()}
        texts = ["" if text is None else str(text) for text in dims.to_list()]
        out |= np.array([passing.get(text, False) for text in texts], np.bool_)
        out |= batched & np.array([written.get(text) in sizes for text in texts], np.bool_)
    found: Mask = out | _called(rank)
    return found


def _score_sizes(softmaxes: list[str]) -> set[int]:
    """How many elements the scores have that softmaxes go over; a softmax over few rows is no attention."""
    tensors = [tensor for text in softmaxes for tensor in _tensors(text) if len(tensor) >= 3]
    scores = [tensor for tensor in tensors if min(tensor[-2:]) >= 1 and tensor[-2] >= _LEAST_SCORES]
    return {int(np.prod(tensor)) for tensor in scores}


def _tensors(text: str) -> list[tuple[int, ...]]:
    found = re.findall(r"\[([\d, ]*)\]", text[1:-1] if text.startswith("[") else text)
    return [tuple(int(number) for number in part.split(",")) for part in found if part.strip()]


def _holds(text: str, sizes: set[int]) -> bool:
    return any(len(tensor) >= 3 and int(np.prod(tensor, dtype=object)) in sizes for tensor in _tensors(text))


def _written(text: str) -> int | None:
    """How many elements the result of a batched product has."""
    tensors = [tensor for tensor in _tensors(text) if len(tensor) >= 3]
    return int(np.prod((*tensors[-2][:-1], tensors[-1][-1]), dtype=object)) if len(tensors) >= 2 else None


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators", "shapes")),))
