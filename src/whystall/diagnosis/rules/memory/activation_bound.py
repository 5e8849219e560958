"""A peak that is mostly activations: candidates for recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.analysis.memory_results import MemoryHolder, MemoryPeak
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_LEAST_BYTES: Final = CAUSE.threshold("least_bytes")


def in_trace(case: Case) -> Iterator[Standing]:
    """By memory events that forward passes make and backward passes free; without a device by those of the CPU."""
    for rank in case.ranks:
        peaks = rank.analysis.memory
        of_devices = [peak for peak in peaks if peak.device_type != "cpu"]
        for peak in of_devices or peaks:
            held = next((one.bytes for one in peak.held if one.kind == "activations"), 0)
            most = peak.peak_allocated_bytes or 0
            if most >= _LEAST_BYTES and held >= _LEAST_SHARE * most:
                yield Standing(
                    cause=CAUSE.id,
                    attributed_ns=0,
                    evidence=(
                        evidence.size("allocated at the peak", most),
                        evidence.size("activations at the peak", held),
                        evidence.share("activations of the peak", held / most),
                        *_largest(peak),
                    ),
                    severity="info",
                    method="memory events: it costs memory, not time",
                    ranks=(rank.rank,),
                    confidence=0.8,
                )


def _largest(peak: MemoryPeak) -> Iterator[Evidence]:
    """The module that holds most, and the most that recomputing it would free; else the operator."""
    sums: dict[str, int] = {}
    for one in peak.holders:
        if one.kind == "activations" and (place := _place(one)) is not None:
            sums[place] = sums.get(place, 0) + one.bytes
    if sums:
        place = max(sums, key=lambda name: (sums[name], name))
        yield evidence.size(f"of that made in {place}: freed at most by recomputing it", sums[place])


def _place(one: MemoryHolder) -> str | None:
    return one.module or one.function or one.operator


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "memory", "operators")),))
