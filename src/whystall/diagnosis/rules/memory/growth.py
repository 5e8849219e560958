"""Memory that rises steadily over the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS, Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_GROWTH_SHARE: Final = CAUSE.threshold("growth_share")
_LEAST_GROWTH_BYTES: Final = CAUSE.threshold("least_growth_bytes")


def in_samples(case: Case) -> Iterator[Standing]:
    """Memory of the process, and what torch has allocated on each device."""
    for run in case.runs:
        for rise in run.memory_rises:
            least = max(_LEAST_GROWTH_BYTES, _GROWTH_SHARE * rise.start_bytes)
            if rise.rise_bytes < least or run.steps < FEWEST_SAMPLED_STEPS:
                continue
            of_the_host = "what is in use of the heap" if rise.heap else "resident memory"
            what = of_the_host if rise.device is None else f"memory allocated on device {rise.device}"
            yield Standing(
                cause=CAUSE.id,
                attributed_ns=0,
                evidence=(
                    evidence.size(f"{what} rises by", rise.rise_bytes),
                    evidence.count("within so many steps", rise.over_steps),
                    evidence.size("growth", round(rise.rise_bytes / rise.over_steps), per="step"),
                    evidence.size("where it began", rise.start_bytes),
                ),
                severity="minor",
                method="samples: it costs memory, not time",
                ranks=(run.rank,),
                confidence=0.8,
            )


RULE = Rule(CAUSE, (Finder(in_samples, ("samples",)),))
