"""Connections that the job waits for."""

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
    """Lines that open and read connections."""
    job = case.facts.job
    if job is not None:
        later = [place for place in (*job.within_steps, *job.after_steps) if part_of(place) == "network"]
        yield from long_lines(case, CAUSE, "outside of steps", lambda place: part_of(place) == "network", later=later)


RULE = Rule(CAUSE, (Finder(of_watched, ("job",)),))
