"""Products in float32: without tensor cores that take TF32, in TF32 in a job of 16 bits, on AMD's matrix cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from whystall.analysis.workings import Workings
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.converted_convolutions import CONVOLUTION
from whystall.diagnosis.detectors.convolution_settings import allow_tf32
from whystall.diagnosis.detectors.kernels import durations, faster_by_names, faster_matrices, scalar_kernels
from whystall.diagnosis.detectors.measured_convolutions import trials
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.hardware.accelerators import Accelerator
from whystall.replay.graph import Change, Mask
from whystall.trace.columns import matching

CAUSE: Final = cause_beside(__name__)
_SINGLE: Final = CAUSE.threshold("single")
_WORTH_HALVING: Final = CAUSE.threshold("worth_halving")
_DOUBTFUL: Final = CAUSE.threshold("doubtful")
_AMONG: Final = CAUSE.threshold("among")


class _Slow(NamedTuple):
    """Kernels in single precision, their peak, that of the precision to use instead (TFLOP/s), and its name."""

    chosen: Mask
    now: float
    then: float
    named: str
    what: str = "matrix kernels without tensor cores"
    remedy: str | None = None
    best: float = 0.0
    """The peak that they may reach at best, if that is higher than ``then``."""
    doubtful: bool = False
    """Whether the library may choose such kernels for these sizes although others are allowed."""


def in_trace(case: Case) -> Iterator[Replayed]:
    """Kernels of calls in single precision; for unknown calls, kernels in single precision by their names."""
    for rank in case.ranks:
        peak = rank.workings.peak
        if peak is None:
            continue
        for find in (_without_tensor_cores, _in_tf32_among_halves, _on_matrix_units):
            slow = find(rank, peak)
            # A library's trials of convolution algorithms belong to compute.slow-convolution.
            if slow is None or not (chosen := slow.chosen & ~trials(rank)).any():
                continue
            found = faster_matrices(
                case,
                rank,
                chosen,
                CAUSE.id,
                ratio=slow.now / slow.then,
                peak=slow.named,
                peak_flops_per_s=slow.then * 1e12,
                best_flops_per_s=slow.best * 1e12,
                what=slow.what,
                remedy=CAUSE.remedies[slow.remedy] if slow.remedy is not None else None,
            )
            yield replace(found, floor=Change(), confidence=_DOUBTFUL) if slow.doubtful else found


def _without_tensor_cores(rank: RankCase, peak: Accelerator) -> _Slow | None:
    if not (peak.has_faster_tf32 and peak.tf32_tflops and peak.fp32_tflops):
        return None
    work = rank.workings
    scalar = work.classified.has("cuda-cores") & work.classified.is_told_to_be("float32") & (work.events.owner < 0)
    chosen = work.could_use_tensor_cores & ~work.uses_tensor_cores & (work.dtype_of("float32") | scalar)
    found = _Slow(chosen, peak.fp32_tflops, peak.tf32_tflops, "TF32")
    if _among_halves(rank, work, chosen):
        return found._replace(remedy="among_halves", best=peak.half_tflops or 0.0)
    # torch's default allows TF32 for convolutions, and not for other products.
    convolutions, took = _convolutions(rank), durations(rank)
    if 2 * took[chosen & convolutions].sum() <= took[chosen].sum():
        return found
    allowed = allow_tf32(rank)
    if allowed is None:
        allowed = bool((convolutions & work.uses_tensor_cores & work.dtype_of("float32")).any())
    return found._replace(remedy="convolutions_allowed" if allowed else "convolutions", doubtful=allowed)


def _convolutions(rank: RankCase) -> Mask:
    """Which events are of convolutions, by their family or their call: a kernel may be a product's."""
    called = matching(rank.trace.operators["name"], lambda name: bool(CONVOLUTION.match(name)))
    found: Mask = (rank.workings.family == "convolution") | rank.launched_by(called)
    return found


def _in_tf32_among_halves(rank: RankCase, peak: Accelerator) -> _Slow | None:
    """Products in TF32 in a job whose other products are in 16 bits: a part of the model was left in float32."""
    best = peak.half_tflops
    if best is None or not peak.tf32_tflops or best < _WORTH_HALVING * peak.tf32_tflops:
        return None
    work = rank.workings
    chosen = work.uses_tensor_cores & work.could_use_tensor_cores & work.dtype_of("float32") & (work.flops() > 0)
    if not _among_halves(rank, work, chosen):
        return None
    what = "matrix kernels in TF32, among others in 16 bits"
    return _Slow(chosen, peak.tf32_tflops, best, "16-bit", what, "tf32_among_halves")


def _on_matrix_units(rank: RankCase, peak: Accelerator) -> _Slow | None:
    """Products in single precision on AMD's matrix units, which take it at a fraction of their rate in 16 bits."""
    best = peak.half_tflops
    if peak.vendor != "AMD" or not peak.fp32_tflops or best is None:
        return None
    work = rank.workings
    flops = work.flops()
    single = work.dtype_of("float32") & work.could_use_tensor_cores & work.uses_tensor_cores & (flops > 0)
    # Kernels that take fewer digits of each number (XF32) are faster than that.
    chosen = single & (flops <= _SINGLE * peak.fp32_tflops * 1e3 * np.maximum(durations(rank), 1))
    return _Slow(chosen, peak.fp32_tflops, best, "16-bit", "matrix kernels in single precision", "on_matrix_units")


def _among_halves(rank: RankCase, work: Workings, chosen: Mask) -> bool:
    """Whether products in 16 bits take enough time, beside the chosen ones, for 16 bits to be the job's precision."""
    took = durations(rank)
    halves = work.is_half & work.could_use_tensor_cores & work.uses_tensor_cores
    return bool(took[halves].sum() >= _AMONG * took[chosen].sum() > 0)


def by_names(case: Case) -> Iterator[Replayed]:
    """The same without shapes, by the kernels' names: the ratio of the peaks, and less sure."""
    for rank in case.ranks:
        work, peak = rank.workings, rank.workings.peak
        if peak is None or not (peak.has_faster_tf32 and peak.tf32_tflops and peak.fp32_tflops):
            continue
        chosen = scalar_kernels(work, "float32")
        if chosen.any() and not rank.analysis.signals.get("shapes"):
            ratio = peak.fp32_tflops / peak.tf32_tflops
            yield faster_by_names(case, rank, chosen, CAUSE.id, ratio=ratio, peak="TF32")


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "operators", "shapes", "peak")),
        Finder(by_names, ("trace", "device_events", "peak")),
    ),
)
