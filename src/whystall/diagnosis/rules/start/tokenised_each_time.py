"""Text that becomes tokens, and data that is prepared, again in each run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.analysis.whole_job import part_of
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.job_lines import long_lines
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def of_watched(case: Case) -> Iterator[Standing]:
    """Lines that tokenise, or change data with a library."""
    job = case.facts.job
    if job is None:
        return
    tokens, data = (sum(one.ns for one in job.before_steps if part_of(one) == part) for part in ("tokens", "data"))
    yield from long_lines(
        case,
        CAUSE,
        "before the end of the first step",
        lambda place: part_of(place) in {"tokens", "data"},
        remedy=CAUSE.remedies["tokens"] if tokens > data else None,
    )


RULE = Rule(CAUSE, (Finder(of_watched, ("job",)),))
