"""16-bit matrices on kernels without tensor cores, or single precision where TF32 is missing or no faster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.converted_convolutions import converted_convolutions
from whystall.diagnosis.detectors.kernels import durations, faster_by_names, faster_matrices, scalar_kernels
from whystall.diagnosis.detectors.measured_convolutions import trials
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Mask
from whystall.trace.columns import distinct

CAUSE: Final = cause_beside(__name__)
_DEQUANTIZES: Final = re.compile(r"dequant", re.IGNORECASE)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Kernels that by their calls' dtypes could use tensor cores, and by their names use scalar units.

    If a kernel's name shows neither (those of Triton, AOTriton and many libraries) its unit is unknown.
    """
    for rank in case.ranks:
        work = rank.workings
        peak = work.peak
        if peak is None or not peak.fp32_tflops:
            continue
        half = work.is_half
        if not peak.has_faster_tf32:
            half = half | work.dtype_of("float32")
        chosen = work.could_use_tensor_cores & ~work.uses_tensor_cores & half & work.classified.has("cuda-cores")
        chosen &= ~(converted_convolutions(rank).computes | trials(rank))  # which are compute.slow-convolution
        # One that moves its bytes for longer than it computes, a product with a vector, gains nothing by tensor cores.
        chosen &= work.flops() / (peak.fp32_tflops * 1e3) > work.transfer_ns()
        best = peak.half_tflops
        if chosen.any() and best:
            yield faster_matrices(
                case,
                rank,
                chosen,
                CAUSE.id,
                ratio=peak.fp32_tflops / best,
                peak="tensor cores",
                peak_flops_per_s=best * 1e12,
                remedy=_remedy(rank, chosen, work.dtype_of("float32")),
            )


def by_names(case: Case) -> Iterator[Replayed]:
    """The same without shapes, by the kernels' names: the ratio of the peaks, and less sure."""
    for rank in case.ranks:
        work, peak = rank.workings, rank.workings.peak
        best = peak.half_tflops if peak is not None else None
        if peak is None or not peak.fp32_tflops or not best or rank.analysis.signals.get("shapes"):
            continue
        chosen = scalar_kernels(work, "float16") | scalar_kernels(work, "bfloat16")
        if not peak.has_faster_tf32:
            chosen |= scalar_kernels(work, "float32")
        if chosen.any():
            ratio = peak.fp32_tflops / best
            found = faster_by_names(case, rank, chosen, CAUSE.id, ratio=ratio, peak="tensor cores")
            yield replace(found, remedy=_remedy(rank, chosen, scalar_kernels(work, "float32")))


def _remedy(rank: RankCase, chosen: Mask, single: Mask) -> Remedy | None:
    """The remedy for what most of the time is: products of 16 bits, or ``single`` precision without bfloat16."""
    took, peak = durations(rank), rank.workings.peak
    if took[chosen & ~single].sum() >= took[chosen & single].sum():
        return CAUSE.remedies["of_16_bits"]
    if any(_DEQUANTIZES.search(name) for name in distinct(rank.trace.device_events["name"])):
        return CAUSE.remedies["dequantized"]
    return CAUSE.remedies["without_bf16"] if peak is not None and not peak.bf16_tflops else None


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "operators", "shapes", "peak")),
        Finder(by_names, ("trace", "device_events", "peak")),
    ),
)
