"""16-bit matrices on kernels without tensor cores, or single precision where there is no TF32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.kernels import faster_matrices
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Kernels of calls that tensor cores would take, by the calls' dtypes."""
    for rank in case.ranks:
        work = rank.workings
        peak = work.peak
        if peak is None or not peak.fp32_tflops:
            continue
        half = work.dtype_of("float16") | work.dtype_of("bfloat16")
        if not peak.tf32_tflops:
            half |= work.dtype_of("float32")
        chosen = work.could_use_tensor_cores & ~work.uses_tensor_cores & half
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


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "operators", "shapes", "peak")),))
