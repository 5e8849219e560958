"""Packages that take long to import, and that no step uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.job_lines import imported, long_lines
from whystall.diagnosis.rule import Finder, Rule
from whystall.run_folder.job_times import JobPlace

CAUSE: Final = cause_beside(__name__)


def of_watched(case: Case) -> Iterator[Standing]:
    """Import statements of packages that the steps were never found in."""
    job = case.facts.job
    if job is None or job.used is None:
        return
    used = {"torch", *job.used}

    def is_unused(place: JobPlace) -> bool:
        packages = imported(place)
        return bool(packages) and not {*packages, _loading(place)} & used

    yield from long_lines(case, CAUSE, "before the end of the first step", is_unused)


def _loading(place: JobPlace) -> str:
    """The package whose module was being imported: one that another line needs stays."""
    return place.leaf.partition(":")[0].partition(".")[0]


RULE = Rule(CAUSE, (Finder(of_watched, ("job",)),))
