"""Lock files that the job waits for."""

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
    """Lines that wait until a lock file is gone or its lock is free."""
    job = case.facts.job
    if job is None:
        return
    later = [place for place in (*job.within_steps, *job.after_steps) if part_of(place) == "locks"]
    never = CAUSE.remedies["never"] if job.first_step_ns is None else None
    yield from long_lines(
        case, CAUSE, "outside of steps", lambda place: part_of(place) == "locks", later=later, remedy=never
    )


RULE = Rule(CAUSE, (Finder(of_watched, ("job",)),))
