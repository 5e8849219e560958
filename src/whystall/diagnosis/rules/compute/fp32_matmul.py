"""Matrices in single precision: without tensor cores where these take TF32, or on AMD's matrix units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.kernels import durations, faster_by_names, faster_matrices, scalar_kernels
from whystall.diagnosis.detectors.measured_convolutions import trials
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_SINGLE: Final = 1.1
"""Times the peak of single precision that no product in it exceeds."""
_WORTH_HALVING: Final = 1.5
_AMONG: Final = 0.5
"""The time of products in 16 bits, relative to those in TF32, from which on the job's precision is 16 bits."""


def in_trace(case: Case) -> Iterator[Replayed]:
    """Kernels of calls in single precision; for unknown calls, kernels in single precision by their names."""
    for rank in case.ranks:
        work = rank.workings
        peak = work.peak
        if peak is None or not (peak.has_faster_tf32 and peak.tf32_tflops and peak.fp32_tflops):
            continue
        scalar = work.classified.has("cuda-cores") & work.classified.is_told_to_be("float32") & (work.events.owner < 0)
        chosen = work.could_use_tensor_cores & ~work.uses_tensor_cores & (work.dtype_of("float32") | scalar)
        chosen &= ~trials(rank)  # which are compute.slow-convolution
        if chosen.any():
            half = work.dtype_of("bfloat16") | work.dtype_of("float16")
            others = int(np.count_nonzero(half & work.could_use_tensor_cores & work.uses_tensor_cores))
            among_halves = others > np.count_nonzero(chosen)
            best = (peak.bf16_tflops or peak.fp16_tflops or 0.0) if among_halves else 0.0
            found = faster_matrices(
                case,
                rank,
                chosen,
                CAUSE.id,
                ratio=peak.fp32_tflops / peak.tf32_tflops,
                peak="TF32",
                peak_flops_per_s=peak.tf32_tflops * 1e12,
                best_flops_per_s=best * 1e12,
            )
            yield replace(found, remedy=CAUSE.remedies["among_halves"]) if among_halves else found


def in_tf32_among_halves(case: Case) -> Iterator[Replayed]:
    """Products in TF32 in a job most of whose others are in 16 bits: a part of the model was left in float32."""
    for rank in case.ranks:
        work, peak = rank.workings, rank.workings.peak
        best = (peak.bf16_tflops or peak.fp16_tflops) if peak is not None else None
        if peak is None or best is None or not peak.tf32_tflops or best < _WORTH_HALVING * peak.tf32_tflops:
            continue
        products = work.could_use_tensor_cores & work.uses_tensor_cores
        chosen = products & work.dtype_of("float32") & (work.flops() > 0) & ~trials(rank)
        halves = products & (work.dtype_of("bfloat16") | work.dtype_of("float16"))
        took = durations(rank)
        if not chosen.any() or took[halves].sum() < _AMONG * took[chosen].sum():
            continue
        found = faster_matrices(
            case,
            rank,
            chosen,
            CAUSE.id,
            ratio=peak.tf32_tflops / best,
            peak="16-bit",
            peak_flops_per_s=best * 1e12,
            what="matrix kernels in TF32, among others in 16 bits",
        )
        yield replace(found, remedy=CAUSE.remedies["tf32_among_halves"])


def on_matrix_units(case: Case) -> Iterator[Replayed]:
    """Products in single precision on AMD's matrix units, which take it at a fraction of their rate in 16 bits."""
    for rank in case.ranks:
        work, peak = rank.workings, rank.workings.peak
        if peak is None or peak.vendor != "AMD" or not peak.fp32_tflops or not peak.bf16_tflops:
            continue
        duration = np.maximum(durations(rank), 1)
        single = work.dtype_of("float32") & work.could_use_tensor_cores & work.uses_tensor_cores
        # Kernels that take fewer digits of each number (XF32) are faster than that.
        chosen = single & (work.flops() / duration <= _SINGLE * peak.fp32_tflops * 1e3) & (work.flops() > 0)
        if chosen.any():
            found = faster_matrices(
                case,
                rank,
                chosen,
                CAUSE.id,
                ratio=peak.fp32_tflops / peak.bf16_tflops,
                peak="16-bit",
                peak_flops_per_s=peak.bf16_tflops * 1e12,
                what="matrix kernels in single precision",
            )
            yield replace(found, remedy=CAUSE.remedies["on_matrix_units"])


def by_names(case: Case) -> Iterator[Replayed]:
    """The same without shapes, by the kernels' names: the ratio of the peaks, and less sure."""
    for rank in case.ranks:
        work, peak = rank.workings, rank.workings.peak
        if (
            peak is None
            or not peak.has_faster_tf32
            or not peak.tf32_tflops
            or not peak.fp32_tflops
            or rank.analysis.signals.get("shapes")
        ):
            continue
        chosen = scalar_kernels(work, "float32")
        if chosen.any():
            ratio = peak.fp32_tflops / peak.tf32_tflops
            yield faster_by_names(case, rank, chosen, CAUSE.id, ratio=ratio, peak="TF32")


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "operators", "shapes", "peak")),
        Finder(in_tf32_among_halves, ("trace", "device_events", "operators", "shapes", "peak")),
        Finder(on_matrix_units, ("trace", "device_events", "operators", "shapes", "peak")),
        Finder(by_names, ("trace", "device_events", "peak")),
    ),
)
