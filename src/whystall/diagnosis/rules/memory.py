"""Causes in memory: what a trace with memory events shows, and what samples of the whole run do.

What torch's allocator says of a device's memory was reasoned from its documentation; it has not yet been seen on a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS, Case
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts

# (reference: causes.md, "reserved/allocated > 1.3 at peak")
_APART: Final = 1.3
# What an allocator rounds up to, and a job this small, tell nothing.
_LEAST_BYTES: Final = 1 << 30
_GROWTH_SHARE: Final = 0.05
_LEAST_GROWTH_BYTES: Final = 16 << 20


def fragmentation(case: Case) -> Iterator[Candidate]:
    """Reserved memory that is far more than was ever allocated: by memory events."""
    for rank in case.ranks:
        for peak in rank.analysis.memory:
            if peak.device_type != "cpu":
                yield from _apart(rank.rank, peak.peak_allocated_bytes, peak.peak_reserved_bytes, "memory events")


def fragmentation_in_run(case: Case) -> Iterator[Candidate]:
    """Reserved memory that is far more than was ever allocated: by what the allocator said now and then."""
    for run in case.runs:
        for one in run.allocators:
            yield from _apart(run.rank, one.peak_allocated_bytes, one.peak_reserved_bytes, "samples")


def _apart(rank: int, allocated: int | None, reserved: int | None, source: str) -> Iterator[Candidate]:
    if not allocated or not reserved or reserved < _LEAST_BYTES or reserved <= _APART * allocated:
        return
    yield Candidate(
        cause="memory.fragmentation",
        attributed_ns=0,
        evidence=(
            facts.size("allocated at the peak", allocated),
            facts.size("reserved at the peak", reserved),
            facts.share("reserved and never in use", 1 - allocated / reserved),
        ),
        standing="info",
        method=f"{source}: it costs memory, not time",
        ranks=(rank,),
        confidence=0.6,
    )


def retries(case: Case) -> Iterator[Candidate]:
    """An allocator that gave its cached memory back to find some for a request."""
    for run in case.runs:
        for one in run.allocators:
            if not one.retries:
                continue
            yield Candidate(
                cause="memory.allocator-retry",
                attributed_ns=0,
                evidence=(
                    facts.count("retries of the allocator", one.retries),
                    facts.count("within so many steps", one.steps),
                    facts.size("allocated at the peak", one.peak_allocated_bytes),
                ),
                standing="minor",
                method="samples: the allocator counts retries, not what they cost",
                ranks=(run.rank,),
                confidence=0.8,
            )


def growth(case: Case) -> Iterator[Candidate]:
    """Memory that rises steadily over the run."""
    for run in case.runs:
        for rise in run.memory_rises:
            least = max(_LEAST_GROWTH_BYTES, _GROWTH_SHARE * rise.start_bytes)
            if rise.rise_bytes < least or run.steps < FEWEST_SAMPLED_STEPS:
                continue
            what = "resident memory" if rise.device is None else f"memory allocated on device {rise.device}"
            yield Candidate(
                cause="memory.growth",
                attributed_ns=0,
                evidence=(
                    facts.size(f"{what} rises by", rise.rise_bytes),
                    facts.count("within so many steps", rise.over_steps),
                    facts.size("per step", round(rise.rise_bytes / rise.over_steps)),
                    facts.size("where it began", rise.start_bytes),
                ),
                standing="minor",
                method="samples: it costs memory, not time",
                ranks=(run.rank,),
                confidence=0.8,
            )


RULES: Final = (
    Rule("memory.fragmentation", ("trace", "memory"), fragmentation),
    Rule("memory.fragmentation", ("samples",), fragmentation_in_run),
    Rule("memory.allocator-retry", ("samples",), retries),
    Rule("memory.growth", ("samples",), growth),
)
