"""Lines of the job's own that prepare for long before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.analysis.whole_job import part_of
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.job_lines import imported, long_lines
from whystall.diagnosis.rule import Finder, Rule
from whystall.run_folder.job_times import MODEL, JobPlace

CAUSE: Final = cause_beside(__name__)


def of_watched(case: Case) -> Iterator[Standing]:
    """Lines whose work is of no kind that another cause names."""
    yield from long_lines(case, CAUSE, "before the end of the first step", _prepares)


def _prepares(place: JobPlace) -> bool:
    return part_of(place) is None and place.work != MODEL and not imported(place)


RULE = Rule(CAUSE, (Finder(of_watched, ("job",)),))
