"""A device whose memory runs far below its rate, as its own pointwise kernels show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.analysis.kernel_classes import COMPUTE
from whystall.analysis.memory_rate import FAR_BELOW
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.kernels import BANDWIDTH_REACHED, durations, shortened
from whystall.diagnosis.rule import Finder, Rule
from whystall.hardware.accelerators import Accelerator, table

CAUSE: Final = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Devices whose fastest large pointwise kernels reach a small share of the memory's bandwidth."""
    for rank in case.ranks:
        work = rank.workings
        reached, peak = work.bytes_per_s_reached, work.peak
        expected = None if peak is None else peak.memory_bytes_per_s or _least_of_units(peak)
        if reached is None or expected is None or reached >= FAR_BELOW * expected:
            continue
        rated = peak is not None and peak.memory_bytes_per_s is not None
        took, moved = durations(rank), work.moved()
        at_rate = moved / (expected * BANDWIDTH_REACHED) * 1e9
        bound = (moved > 0) & ((work.flops() == 0) | (moved / reached * 1e9 >= took / 2))
        computes = work.classified.class_of == COMPUTE
        nodes = case.nodes(rank, device=bound)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=case.time_of(nodes),
            evidence=(
                evidence.bandwidth("large pointwise kernels read and write at most", reached),
                evidence.bandwidth(
                    "the memory's bandwidth" if rated else "the bandwidth of a part with these units, at least",
                    expected,
                ),
            ),
            removal=shortened(case, rank, bound, at_rate),
            ceiling=shortened(case, rank, computes, took * reached / expected),
            method="replay: kernels that bytes limit at the memory's rate; at most, all faster by that ratio",
            ranks=(rank.rank,),
            uncertainty=0.25,
            confidence=0.85 if rated else 0.7,
        )


def _least_of_units(peak: Accelerator) -> float | None:
    """The bandwidth of a part that is not listed, from the lowest for each unit of those of its architecture."""
    listed = [
        row.memory_bytes_per_s / row.compute_units
        for row in table()
        if row.vendor == peak.vendor
        and row.capability == peak.capability
        and row.memory_bytes_per_s
        and row.compute_units
    ]
    return min(listed) * peak.compute_units if listed and peak.compute_units else None


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "operators", "shapes", "peak")),))
