"""Lines that import for long before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.job_lines import Long, is_import, long_lines
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_LONG: Final = Long(CAUSE.threshold("long_s"), CAUSE.threshold("least_s"), CAUSE.threshold("least_share"))


def of_watched(case: Case) -> Iterator[Standing]:
    """The import statements with most of the time."""
    job = case.facts.job
    if job is not None:
        yield from long_lines(
            case, CAUSE.id, _LONG, "before the first batch", list(filter(is_import, job.before_steps))
        )


RULE = Rule(CAUSE, (Finder(of_watched, ("samples",)),))
