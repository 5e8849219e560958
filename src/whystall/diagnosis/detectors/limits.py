"""Devices that compute nearly all the time, at nearly the rate that physics gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import COMPUTE
from whystall.analysis.workings import Workings
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.kernels import BANDWIDTH_REACHED, durations
from whystall.diagnosis.rank_case import RankCase
from whystall.hardware.accelerators import Accelerator

# (reference: causes.md, "U(K)/T > 0.9, GEMM >= 70 % of achievable peak", "bytes/BW = t (> 70 %)")
_BUSY: Final = 0.9
_REACHED: Final = 0.7
# A family of kernels is expensive from this share of the computing time on.
_EXPENSIVE: Final = 0.2
# Kernels that take this many times as long as their work needs are usual (reference: causes.md, "eta"; tiles, tails);
# beyond it the excess has no explanation.
_FAR: Final = 1 / 0.35
# Beyond this many the work is not known: the recorded sizes are those of another part of the call.
_BEYOND_BELIEF: Final = 100
# Blocks per multiprocessor up to which any kernel leaves half of the device idle.
_FEW: Final = 0.5


_OF_SINGLE: Final[Mapping[tuple[str, tuple[int, int] | None], float]] = {
    ("NVIDIA", (6, 0)): 0.5,
    ("NVIDIA", (7, 0)): 0.5,
    ("NVIDIA", (8, 0)): 1.0,
    ("NVIDIA", (9, 0)): 1.0,
    ("NVIDIA", (10, 0)): 0.5,
    ("AMD", (9, 0)): 1.0,
    ("AMD", (9, 4)): 1.0,
    ("AMD", (9, 5)): 0.5,
}
"""The rate in double precision as a share of that in single precision, of tensor cores where they take doubles (data
sheets of P100, V100, A100, H100, B200, MI250X, MI300X, MI355X). Other devices have few such units, or their rate is
not known."""


def at_limit(case: Case, cause: str, *, decoding: bool) -> Iterator[Sampled]:
    """The devices near a limit: those that decode from memory, or all others."""
    for rank in case.ranks:
        work = rank.workings
        devices = [device for device in rank.analysis.devices if device.kind != "cpu" and device.window_ns > 0]
        if work.peak is None or len(devices) != 1:
            continue
        busy = devices[0].ledger.compute / devices[0].window_ns
        reached, bandwidth, few_rows = _reached(rank, work.peak)
        if busy < _BUSY or reached < _REACHED or (bandwidth and few_rows and not rank.trains) != decoding:
            continue
        what = "memory bandwidth" if bandwidth else "matrix products"
        yield Sampled(
            cause=cause,
            attributed_ns=int(case.step_ns * busy),
            evidence=(
                evidence.share("of the time the device computes", busy),
                evidence.share("of the kernels' time that the same work takes at the least on this device", reached),
            ),
            saved=(0.0, 0.0, 0.0),
            method="the peaks of the device for what its kernels compute and move",
            ranks=(rank.rank,),
            confidence=0.8,
            if_hidden=f"the device works near its limit, which is {what}: it computes {busy:.0%} of the time, "
            f"and the same work would take at least {reached:.0%} of what its kernels take; the most that software "
            f"could bring with the same arithmetic is {1 / (busy * reached):.2f} times",
        )


def _reached(rank: RankCase, peak: Accelerator) -> tuple[float, bool, bool]:
    """The least time of the work of compute kernels, as a share of their time.

    Also whether bytes bound most of that time, and whether most of these are read by products of few rows.
    """
    computes = rank.workings.classified.class_of == COMPUTE
    duration = durations(rank)
    products, moves = least_of_events(rank.workings, peak)
    least = np.where(computes, np.minimum(np.maximum(products, moves), duration), 0.0)
    reached = float(least.sum()) / max(float(duration[computes].sum()), 1.0)
    bound = computes & (moves > products)
    spent, known = float(duration[bound].sum()), float(duration[computes & (least > 0)].sum())
    return reached, spent > known / 2, float(duration[bound & (products > 0)].sum()) > spent / 2


def least_of_events(
    work: Workings, peak: Accelerator, *, on_paper: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per event the time of its arithmetic at the best measured rate, and of its bytes at the bandwidth of copies.

    ``on_paper``: at the data sheet's peaks, as in a roofline.
    """
    flops = work.flops()
    rate = np.full(len(flops), np.inf)
    for dtype, flops_per_s in _rates(peak, on_paper=on_paper).items():
        rate[work.dtype_of(dtype)] = flops_per_s
    # Without a known rate in double precision a product's time is unknown: few units compute it, and bytes matter less.
    unknown = work.dtype_of("float64") & (flops > 0) & np.isinf(rate)
    rated = peak.memory_bytes_per_s
    moves = np.where(unknown, 0.0, work.moved() / rated * 1e9) if rated else np.zeros(len(flops))
    return flops / rate * 1e9, moves / (1.0 if on_paper else BANDWIDTH_REACHED)


def _rates(peak: Accelerator, *, on_paper: bool = False) -> dict[str, float]:
    """Matrix FLOP/s by dtype: the best measured rate, else (or ``on_paper``) the peak."""
    half = peak.bf16_tflops if on_paper else peak.bf16_achievable_tflops or peak.bf16_tflops
    share = half / peak.bf16_tflops if half and peak.bf16_tflops else 1.0
    known = {
        "bfloat16": half,
        "float16": (peak.fp16_tflops or 0) * share,
        "float32": peak.tf32_tflops or peak.fp32_tflops,
        "float64": (peak.fp32_tflops or 0) * _OF_SINGLE.get((peak.vendor, peak.capability), 0.0),
    }
    return {dtype: tflops * 1e12 for dtype, tflops in known.items() if tflops}


def has_units_for_doubles(peak: Accelerator) -> bool:
    """Whether a device is known to have many units for double precision."""
    return (peak.vendor, peak.capability) in _OF_SINGLE


@dataclass(frozen=True, slots=True)
class FarFamily:
    """An expensive family of kernels that take much longer than their work needs on the device."""

    family: str
    share: float
    """Share of the device's computing time."""
    times: float
    """The ratio of their time to the least time of their work."""

    def __str__(self) -> str:
        return (
            f"{self.family} kernels take {self.share:.0%} of its computing time, and {self.times:.1f} times as long "
            "as their arithmetic and bytes need on this device"
        )


@dataclass(frozen=True, slots=True)
class FewBlocks:
    """Kernels that start fewer blocks than half of the device has multiprocessors, and take much of its time."""

    share: float
    """Share of the device's computing time."""
    blocks: int
    """The most blocks that any of them has."""
    multiprocessors: int

    def __str__(self) -> str:
        return (
            f"kernels of at most {self.blocks} blocks, on {self.multiprocessors} multiprocessors, "
            f"take {self.share:.0%} of its computing time"
        )


def far_from_limits(case: Case) -> FarFamily | FewBlocks | None:
    """The expensive kernels that are farthest from the physical limit; ``None`` where none are, as far as is known."""
    ranks = [rank for rank in case.ranks if rank.on_device]
    far = [family for rank in ranks for family in _far_families(rank)]
    few = [found for rank in ranks if (found := _few_blocks(rank)) is not None]
    worst = max(far, key=lambda one: (one.share * (1 - 1 / one.times), one.family), default=None)
    return worst or max(few, key=lambda one: one.share, default=None)


def _few_blocks(rank: RankCase) -> FewBlocks | None:
    events = rank.trace.device_events
    units = next((one.multiprocessors for one in rank.trace.metadata.devices if one.multiprocessors), None)
    if units is None or "blocks_per_sm" not in events.columns:
        return None
    computes = rank.workings.classified.class_of == COMPUTE
    filled = events["blocks_per_sm"].fill_null(0.0).to_numpy()
    few = computes & (filled > 0) & (filled <= _FEW)
    share = float(durations(rank)[few].sum()) / max(float(durations(rank)[computes].sum()), 1.0)
    return FewBlocks(share, round(float(filled[few].max()) * units), units) if share >= _EXPENSIVE else None


def _far_families(rank: RankCase) -> Iterator[FarFamily]:
    work = rank.workings
    computes = work.classified.class_of == COMPUTE
    total = float(durations(rank)[computes].sum())
    if work.peak is None or not len(work.work.causal) or total <= 0:
        return
    owner = np.maximum(work.events.owner, 0)
    # a call's work stands at its main event, its time in all of its events
    owned = computes & (work.events.owner >= 0)
    call_ns = np.bincount(owner[owned], weights=durations(rank)[owned], minlength=len(work.work.causal))
    least = np.maximum(*least_of_events(work, work.peak))
    known = computes & work.events.main & (least > 0)
    for family in sorted(set(work.family[known].tolist())):
        chosen = known & (work.family == family)
        taken, needed = float(call_ns[owner[chosen]].sum()), float(least[chosen].sum())
        if taken >= _EXPENSIVE * total and _FAR * needed <= taken <= _BEYOND_BELIEF * needed:
            yield FarFamily(str(family) or "other", taken / total, taken / needed)
