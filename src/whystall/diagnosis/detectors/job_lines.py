"""Lines of the user's that take long outside of steps: candidates without a gain of a step, in seconds of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.units import duration
from whystall.diagnosis.where import heaviest
from whystall.run_folder.job_times import IMPORTING, JobPlace

_SHOWN: Final = 3
_IMPORTS: Final = re.compile(r"^(import|from)\s+[\w.]+")


def is_import(place: JobPlace) -> bool:
    """Whether a line is a statement that imports."""
    return _IMPORTS.match(place.text) is not None


def imports_by_itself(place: JobPlace) -> bool:
    """Whether a line imports without saying so, as a constructor that loads its module on first use does."""
    return place.leaf == IMPORTING and not is_import(place)


class Long(NamedTuple):
    """How long lines take to be worth knowing: seconds at any share of the job, or fewer seconds at a share."""

    long_s: float
    least_s: float
    least_share: float

    def reached(self, ns: int, share: float) -> bool:
        """Whether a time, with its share of the job, is that long."""
        return ns >= self.long_s * 1e9 or (ns >= self.least_s * 1e9 and share >= self.least_share)


def long_lines(case: Case, cause: str, long: Long, part: str, found: Sequence[JobPlace]) -> Iterator[Standing]:
    """One candidate for lines outside of steps, if together they are long; ``part`` is their part of the job."""
    job = case.facts.job
    if job is None:
        return
    whole = sum(place.ns for place in found)
    share = whole / max(job.wall_ns, 1)
    if not long.reached(whole, share):
        return
    shown = found[:_SHOWN]
    yield Standing(
        cause=cause,
        attributed_ns=0,
        detail=duration(whole),
        evidence=(
            evidence.time(f"in these lines, {part}", whole),
            evidence.share("of the whole job", share),
            *(evidence.time(f"at {place.file}:{place.line}", place.ns) for place in shown),
        ),
        code=heaviest({(place.file, place.line, place.text or place.function): float(place.ns) for place in found}),
        ranks=(job.rank,),
        confidence=0.9,
        severity="info",
    )
