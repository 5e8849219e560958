"""Compilation until the first step ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.analysis.whole_job import part_of
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.job_lines import Removed, long_lines
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def of_watched(case: Case) -> Iterator[Standing]:
    """Lines at which a compiler was at work."""
    job = case.facts.job
    if job is None:
        return
    found = [place for place in job.before_steps if part_of(place) == "compile"]
    kept = sum(place.ns for place in found if place.work == "code generation")
    yield from long_lines(
        case,
        CAUSE,
        "before the end of the first step",
        lambda place: part_of(place) == "compile",
        remedy=None if 2 * kept >= sum(place.ns for place in found) else CAUSE.remedies["traced"],
        removed=_removed(kept, sum(place.ns for place in found)),
    )


def _removed(kept: int, whole: int) -> Removed:
    """The share of compilation that a cache saves: of code that is generated; tracing is done again."""
    return Removed(*(share * kept / max(whole, 1) for share in Removed.of(CAUSE)))


RULE = Rule(CAUSE, (Finder(of_watched, ("job",)),))
