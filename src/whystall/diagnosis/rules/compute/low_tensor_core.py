"""16-bit matrices on kernels without tensor cores, or single precision where there is no TF32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.kernels import faster_by_names, faster_matrices, scalar_kernels
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Kernels that by their calls' dtypes could use tensor cores, and by their names use scalar units.

    If a kernel's name shows neither (those of Triton, AOTriton and many libraries) its unit is unknown.
    """
    for rank in case.ranks:
        work = rank.workings
        peak = work.peak
        if peak is None or not peak.fp32_tflops:
            continue
        half = work.dtype_of("float16") | work.dtype_of("bfloat16")
        if not peak.tf32_tflops:
            half |= work.dtype_of("float32")
        chosen = work.could_use_tensor_cores & ~work.uses_tensor_cores & half & work.classified.has("cuda-cores")
        best = peak.fp16_tflops or peak.bf16_tflops
        if chosen.any() and best:
            yield faster_matrices(
                case,
                rank,
                chosen,
                CAUSE.id,
                ratio=peak.fp32_tflops / best,
                peak="tensor cores",
                peak_flops_per_s=best * 1e12,
            )


def by_names(case: Case) -> Iterator[Replayed]:
    """The same without shapes, by the kernels' names: the ratio of the peaks, and less sure."""
    for rank in case.ranks:
        work, peak = rank.workings, rank.workings.peak
        best = (peak.fp16_tflops or peak.bf16_tflops) if peak is not None else None
        if peak is None or not peak.fp32_tflops or not best or rank.analysis.signals.get("shapes"):
            continue
        chosen = scalar_kernels(work, "float16") | scalar_kernels(work, "bfloat16")
        if not peak.tf32_tflops:
            chosen |= scalar_kernels(work, "float32")
        if chosen.any():
            ratio = peak.fp32_tflops / best
            yield faster_by_names(case, rank, chosen, CAUSE.id, ratio=ratio, peak="tensor cores")


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "operators", "shapes", "peak")),
        Finder(by_names, ("trace", "device_events", "peak")),
    ),
)
