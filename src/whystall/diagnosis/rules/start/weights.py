"""Weights that take long to read: twice, or from a pickled file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from whystall.analysis.whole_job import part_of
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.job_lines import long_lines
from whystall.diagnosis.rule import Finder, Rule
from whystall.run_folder.job_times import JobPlace

CAUSE: Final = cause_beside(__name__)
_READS: Final = re.compile(r"\btorch\.load\((?P<what>[^,)]+)")
_PICKLED: Final = re.compile(r"^torch\.(serialization|_weights_only_unpickler|_utils|storage):|^torch\._C")


def of_watched(case: Case) -> Iterator[Standing]:
    """Lines that read pickled weights, and whether two of them read the same file."""
    job = case.facts.job
    if job is None:
        return
    twice = _twice(job.before_steps)
    yield from long_lines(
        case,
        CAUSE,
        "before the end of the first step",
        _is_pickled,
        detail=f"lines {' and '.join(twice)} read the same file" if twice else "",
        remedy=CAUSE.remedies["twice"] if twice else None,
    )


def _is_pickled(place: JobPlace) -> bool:
    return part_of(place) == "weights" and (_READS.search(place.text) or _PICKLED.match(place.leaf)) is not None


def _twice(places: Sequence[JobPlace]) -> list[str]:
    """Lines of one file that load what is written alike, if there are several."""
    read: dict[tuple[str, str], list[str]] = {}
    for place in sorted(places, key=lambda one: one.line):
        found = _READS.search(place.text)
        if found is not None and part_of(place) == "weights":
            lines = read.setdefault((place.file, found["what"].strip()), [])
            lines += [] if str(place.line) in lines else [str(place.line)]
    return max(read.values(), key=len, default=[]) if any(len(lines) > 1 for lines in read.values()) else []


RULE = Rule(CAUSE, (Finder(of_watched, ("job",)),))
