"""Packages that take long to import, and that no step uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.job_lines import imported, long_lines
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def of_watched(case: Case) -> Iterator[Standing]:
    """Import statements of packages that the steps were never found in."""
    job = case.facts.job
    if job is None or job.used is None:
        return
    used = {"torch", *job.used}
    yield from long_lines(
        case, CAUSE, "before the end of the first step", lambda place: (imported(place) or "torch") not in used
    )


RULE = Rule(CAUSE, (Finder(of_watched, ("samples",)),))
