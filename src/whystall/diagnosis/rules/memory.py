"""Causes in device memory that a trace with memory events shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.case import Case
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts

# (reference: causes.md, "reserved/allocated > 1.3 at peak")
_APART: Final = 1.3
# What an allocator rounds up to, and a job this small, tell nothing.
_LEAST_BYTES: Final = 1 << 30


def fragmentation(case: Case) -> Iterator[Candidate]:
    """Reserved memory that is far more than was ever allocated."""
    for rank in case.ranks:
        for peak in rank.analysis.memory:
            allocated, reserved = peak.peak_allocated_bytes, peak.peak_reserved_bytes
            if peak.device_type == "cpu" or not allocated or not reserved or reserved < _LEAST_BYTES:
                continue
            if reserved <= _APART * allocated:
                continue
            yield Candidate(
                cause="memory.fragmentation",
                attributed_ns=0,
                evidence=(
                    facts.size("allocated at the peak", allocated),
                    facts.size("reserved at the peak", reserved),
                    facts.share("reserved and never in use", 1 - allocated / reserved),
                ),
                standing="info",
                method="memory events: it costs memory, not time",
                ranks=(rank.rank,),
                confidence=0.6,
            )


RULES: Final = (Rule("memory.fragmentation", ("trace", "memory"), fragmentation),)
