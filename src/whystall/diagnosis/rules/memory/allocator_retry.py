"""An allocator that gives its cached memory back to find some for a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.allocation import allocation_calls
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Calls that allocate in steps of which most give memory back as well."""
    yield from allocation_calls(case, CAUSE.id, frees=True)


def in_samples(case: Case) -> Iterator[Standing]:
    """Retries as the allocator counts them; reasoned from torch's documentation, not yet seen on a device."""
    for run in case.runs:
        for one in run.allocators:
            if one.retries:
                yield Standing(
                    cause=CAUSE.id,
                    attributed_ns=0,
                    evidence=(
                        evidence.count("retries of the allocator", one.retries),
                        evidence.count("within so many steps", one.steps),
                        evidence.size("allocated at the peak", one.peak_allocated_bytes),
                    ),
                    severity="minor",
                    method="samples: the allocator counts retries, not what they cost",
                    ranks=(run.rank,),
                    confidence=0.8,
                )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "launch_calls")), Finder(in_samples, ("samples",))))
