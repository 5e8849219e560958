"""What is told of a device that does its work about as fast as it can: there is nothing to remove."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import COMPUTE
from whystall.diagnosis.case import Case, DeviceWork, RankCase
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts
from whystall.hardware.accelerators import Accelerator

# (reference: causes.md, "U(K)/T > 0.9, GEMM >= 70 % of achievable peak", "bytes/BW = t (> 70 %)")
_BUSY: Final = 0.9
_REACHED: Final = 0.7
# Of the bandwidth in the data sheet what copies reach.
_BANDWIDTH_REACHED: Final = 0.85


def at_limit(case: Case) -> Iterator[Candidate]:
    """A device that computes nearly all the time, at nearly the rate that it can."""
    for rank in case.ranks:
        work = rank.device_work
        devices = [device for device in rank.analysis.devices if device.kind != "cpu" and device.window_ns > 0]
        if work.peak is None or len(devices) != 1:
            continue
        busy = devices[0].ledger.compute / devices[0].window_ns
        computes = work.classified.class_of == COMPUTE
        duration = rank.trace.device_events["duration_ns"].to_numpy().astype(np.float64)
        took = float(duration[computes].sum())
        products, moves = _least_ns(work, work.peak)
        least = np.where(computes, np.minimum(np.maximum(products, moves), duration), 0.0)
        reached = float(least.sum()) / max(took, 1.0)
        if busy < _BUSY or reached < _REACHED:
            continue
        bandwidth = float(least[moves > products].sum()) > float(least.sum()) / 2
        decoding = bandwidth and not _trains(rank)
        what = "memory bandwidth" if bandwidth else "matrix products"
        yield Candidate(
            cause="inference.bandwidth-bound-decode" if decoding else "compute.at-limit",
            attributed_ns=int(case.step_ns * busy),
            evidence=(
                facts.share("of the time the device computes", busy),
                facts.share("of the kernels' time that the same work takes at the least on this device", reached),
            ),
            saved=(0.0, 0.0, 0.0),
            method="the peaks of the device for what its kernels compute and move",
            ranks=(rank.rank,),
            confidence=0.8,
            hidden=f"the device works near its limit, which is {what}: it computes {busy:.0%} of the time, and the same "
            f"work would take at least {reached:.0%} of what its kernels take; the most that software could bring with the "
            f"same arithmetic is {1 / (busy * reached):.2f} times",
        )


def _trains(rank: RankCase) -> bool:
    return bool((rank.trace.operators["forward_thread"].fill_null(0) > 0).any())


def _least_ns(work: DeviceWork, peak: Accelerator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per event what its arithmetic takes at the best rate that was measured, and its bytes at the bandwidth of copies."""
    owner = np.maximum(work.events.owner, 0)
    if not len(work.work.causal):
        nothing = np.zeros(len(owner))
        return nothing, nothing
    flops = np.where(work.events.main & (work.events.owner >= 0), work.work.causal[owner], 0).astype(np.float64)
    rate = np.full(len(owner), np.inf)
    for dtype, flops_per_s in _rates(peak).items():
        rate[work.dtype_of(dtype)] = flops_per_s
    return flops / rate * 1e9, work.transfer_ns() / _BANDWIDTH_REACHED


def _rates(peak: Accelerator) -> dict[str, float]:
    """Matrix FLOP/s by dtype: what was measured at best where it was, else the peak."""
    half = peak.bf16_achievable_tflops or peak.bf16_tflops
    share = half / peak.bf16_tflops if half and peak.bf16_tflops else 1.0
    known = {
        "bfloat16": half,
        "float16": (peak.fp16_tflops or 0) * share,
        "float32": peak.tf32_tflops or peak.fp32_tflops,
    }
    return {dtype: tflops * 1e12 for dtype, tflops in known.items() if tflops}


RULES: Final = (Rule("compute.at-limit", ("trace", "device", "operators", "shapes", "peak"), at_limit),)
