"""Lines that prepare data, model or weights for long before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.job_lines import Long, imports_by_itself, is_import, long_lines
from whystall.diagnosis.rule import Finder, Rule
from whystall.run_folder.job_times import JobPlace

CAUSE: Final = cause_beside(__name__)
_LONG: Final = Long(CAUSE.threshold("long_s"), CAUSE.threshold("least_s"), CAUSE.threshold("least_share"))


def of_watched(case: Case) -> Iterator[Standing]:
    """All lines but imports, also those of a constructor, which no change of the job avoids."""
    job = case.facts.job
    if job is not None:
        yield from long_lines(
            case, CAUSE.id, _LONG, "before the first batch", list(filter(_prepares, job.before_steps))
        )


def _prepares(place: JobPlace) -> bool:
    return not is_import(place) and not imports_by_itself(place)


RULE = Rule(CAUSE, (Finder(of_watched, ("samples",)),))
