"""Reserved memory that is far more than was ever allocated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_APART: Final = CAUSE.threshold("apart")
_LEAST_BYTES: Final = CAUSE.threshold("least_bytes")


def in_trace(case: Case) -> Iterator[Standing]:
    """By memory events."""
    for rank in case.ranks:
        for peak in rank.analysis.memory:
            if peak.device_type != "cpu":
                yield from _apart(rank.rank, peak.peak_allocated_bytes, peak.peak_reserved_bytes, "memory events")


def in_samples(case: Case) -> Iterator[Standing]:
    """From samples of the allocator; reasoned from torch's documentation, not yet seen on a device."""
    for run in case.runs:
        for one in run.allocators:
            yield from _apart(run.rank, one.peak_allocated_bytes, one.peak_reserved_bytes, "samples")


def _apart(rank: int, allocated: int | None, reserved: int | None, source: str) -> Iterator[Standing]:
    if allocated and reserved and reserved >= _LEAST_BYTES and reserved > _APART * allocated:
        yield Standing(
            cause=CAUSE.id,
            attributed_ns=0,
            evidence=(
                evidence.size("allocated at the peak", allocated),
                evidence.size("reserved at the peak", reserved),
                evidence.size("reserved and never in use", reserved - allocated),
                evidence.share("reserved and never in use", 1 - allocated / reserved),
            ),
            severity="info",
            method=f"{source}: it costs memory, not time",
            ranks=(rank,),
            confidence=0.6,
        )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "memory")), Finder(in_samples, ("samples",))))
