"""Lines of the user's that take long outside of steps: candidates with a saving of the whole job, in seconds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Self

from whystall.analysis.whole_job import WholeJob
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import Cause
from whystall.diagnosis.finding import JobSaving, Remedy
from whystall.diagnosis.units import duration
from whystall.diagnosis.where import heaviest
from whystall.run_folder.job_times import JobPlace

Chosen = Callable[[JobPlace], bool]
"""Whether a place belongs to a cause."""

_SHOWN: Final = 3
_IMPORTS: Final = re.compile(r"(?:^|;)\s*(?:from\s+(?P<one>\w+)[\w.]*\s+import\b|import\s+(?P<several>[\w.\s,]+))")


def imported(place: JobPlace) -> frozenset[str]:
    """The packages that a line imports; empty where it is no import.

    >>> sorted(imported(JobPlace("train.py", 3, "<module>", "import time, torch.nn as nn, pandas", "pandas:x", 1)))
    ['pandas', 'time', 'torch']
    >>> imported(JobPlace("train.py", 3, "<module>", "from pandas.io import sql", "pandas:x", 1))
    frozenset({'pandas'})
    """
    found: set[str] = set()
    for match in _IMPORTS.finditer(place.text):
        names = [match["one"]] if match["one"] else match["several"].split(",")
        found |= {words[0].partition(".")[0] for name in names if (words := name.split())}
    return frozenset(found)


class Long(NamedTuple):
    """How long lines take to be named: seconds at any share of the job, or fewer seconds at a share."""

    long_s: float
    least_s: float
    least_share: float

    @classmethod
    def of(cls, cause: Cause) -> Self:
        """The thresholds of a cause's entry."""
        return cls(*(cause.threshold(name) for name in cls._fields))

    def reached(self, ns: int, share: float) -> bool:
        """Whether a time, with its share of the job, is that long."""
        return ns >= self.long_s * 1e9 or (ns >= self.least_s * 1e9 and share >= self.least_share)


class Removed(NamedTuple):
    """The share of the lines' time that the remedy saves: at least, as expected, at most."""

    floor: float
    expected: float
    ceiling: float

    @classmethod
    def of(cls, cause: Cause) -> Self:
        """The shares of a cause's entry."""
        return cls(*(cause.threshold(f"removed_{name}") for name in ("least", "expected", "most")))


def before_the_first_step(job: WholeJob, chosen: Chosen) -> tuple[list[JobPlace], int]:
    """The chosen places until the first step of the last rank ended, and how much sooner it would end without them.

    The ranks wait for each other: the step begins when the last one is ready, with or without the change.
    """
    found = list(filter(chosen, job.before_steps))
    own = sum(place.ns for place in found)
    if job.first_step_ns is None:
        return found, own
    ready = max(job.first_step_ns - job.waited_ns, 0)
    others = [one.own_ns - sum(place.ns for place in one.places if chosen(place)) for one in job.others]
    return found, min(own, max(ready - max([ready - own, *others]), 0))


def long_lines(
    case: Case,
    cause: Cause,
    where: str,
    chosen: Chosen,
    *,
    later: Sequence[JobPlace] = (),
    starts: bool = True,
    detail: str = "",
    remedy: Remedy | None = None,
    removed: Removed | None = None,
) -> Iterator[Standing]:
    """One candidate for the lines outside of steps that are chosen, if together they are long.

    ``where`` says where they are in the job, ``later`` are those after the first step, and ``starts`` is whether those
    before its end count. ``removed`` is the saved share, by default that of the entry; an entry without one saves
    nothing that is known.
    """
    job = case.facts.job
    if job is None:
        return
    before, sooner = before_the_first_step(job, chosen) if starts else ([], 0)
    lines: Counter[tuple[str, int, str]] = Counter()
    for place in (*before, *later):
        lines[place.file, place.line, place.text or place.function] += place.ns
    whole = lines.total()
    share = whole / max(job.wall_ns, 1)
    if not Long.of(cause).reached(whole, share):
        return
    if removed is None and "removed_expected" in cause.thresholds:
        removed = Removed.of(cause)
    awaited = f"on rank {job.rank}, which the others wait for" if job.others and sooner else ""
    yield Standing(
        cause=cause.id,
        attributed_ns=0,
        detail=": ".join(filter(None, [duration(whole), detail, awaited])),
        evidence=(
            evidence.time(f"in these lines, {where}", whole),
            evidence.share("of the whole job", min(share, 1.0)),
            *(evidence.time(f"at {file}:{line}", ns) for (file, line, _), ns in lines.most_common(_SHOWN)),
        ),
        code=heaviest({line: float(ns) for line, ns in lines.items()}),
        ranks=(job.rank,),
        confidence=0.9,
        severity="info",
        remedy=remedy,
        saves=saving(removed, job, sooner, sum(place.ns for place in later)),
    )


def saving(removed: Removed | None, job: WholeJob, sooner: int, later: int) -> JobSaving | None:
    """The seconds that the remedy saves, within those of the job; ``None``: none, or not known."""
    if removed is None or not removed.ceiling:
        return None
    whole = sooner + later
    floor, expected, ceiling = (min(round(whole * share), job.wall_ns) for share in removed)
    return JobSaving(
        floor_ns=floor,
        expected_ns=expected,
        ceiling_ns=ceiling,
        first_step_ns=min(round(sooner * removed.expected), expected) if job.first_step_ns is not None else 0,
    )
