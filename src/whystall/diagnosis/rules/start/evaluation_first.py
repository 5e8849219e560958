"""An evaluation before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.job_lines import long_lines
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def of_watched(case: Case) -> Iterator[Standing]:
    """Lines within an evaluation, its workers included."""
    yield from long_lines(case, CAUSE, "before the end of the first step", lambda place: place.role == "evaluation")


RULE = Rule(CAUSE, (Finder(of_watched, ("job",)),))
