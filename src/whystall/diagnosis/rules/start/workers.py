"""Loaders' workers that take long to start and to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.analysis.whole_job import part_of
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.job_lines import Removed, long_lines
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_FIRST: Final = Removed(
    CAUSE.threshold("first_least"), CAUSE.threshold("first_expected"), CAUSE.threshold("first_most")
)


def of_watched(case: Case) -> Iterator[Standing]:
    """Lines that wait for workers to start, to end, or for the first batch of each."""
    job = case.facts.job
    if job is None:
        return
    later = [place for place in (*job.within_steps, *job.after_steps) if part_of(place) == "workers"]
    again = _started_again(case)
    yield from long_lines(
        case,
        CAUSE,
        "outside of steps",
        lambda place: part_of(place) == "workers",
        later=later,
        remedy=None if again else CAUSE.remedies["first"],
        removed=_removed(again) if again else _FIRST,
    )


def _started_again(case: Case) -> float:
    """The share of the starts of workers that another one came before; without loaders half of them."""
    used = [one for one in case.facts.loaders if one.get("workers") and one.get("epochs")]
    starts = [1 if one.get("persistent_workers") else int(one["epochs"] or 1) for one in used]
    return 1 - len(starts) / sum(starts) if starts else 0.5


def _removed(again: float) -> Removed:
    """The share that workers save which persist; the first start may be shorter, too."""
    floor, expected, ceiling = Removed.of(CAUSE)
    return Removed(floor * again, expected * again, min(again + ceiling * (1 - again), ceiling))


RULE = Rule(CAUSE, (Finder(of_watched, ("job",)),))
