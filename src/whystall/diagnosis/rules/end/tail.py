"""Lines that go on for long after the last step."""

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
_NAMED_APART: Final = frozenset({"workers", "commands", "network", "evaluation", "saves"})
"""Parts that have causes of their own, and those that the job is run for."""


def of_watched(case: Case) -> Iterator[Standing]:
    """Lines after the last step: none that waits for workers, commands or connections, evaluates or saves."""
    job = case.facts.job
    if job is not None:
        later = [place for place in job.after_steps if part_of(place) not in _NAMED_APART]
        yield from long_lines(case, CAUSE, "after the last step", lambda _: False, later=later, starts=False)


RULE = Rule(CAUSE, (Finder(of_watched, ("job",)),))
