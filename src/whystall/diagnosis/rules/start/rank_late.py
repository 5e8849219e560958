"""A rank that is ready for its first step later than all others, which wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from whystall.analysis.whole_job import WholeJob
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.job_lines import Long, Removed, saving
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.units import duration
from whystall.diagnosis.where import heaviest
from whystall.run_folder.job_times import JobPlace

CAUSE: Final = cause_beside(__name__)
_LONG: Final = Long.of(CAUSE)
_REMOVED: Final = Removed.of(CAUSE)
_Line = tuple[str, int, str]


def of_watched(case: Case) -> Iterator[Standing]:
    """The rank that was ready last, with the lines that take it longer than any other rank."""
    job = case.facts.job
    if job is None or not job.others or job.first_step_ns is None:
        return
    late = max(job.first_step_ns - job.waited_ns, 0) - max(one.own_ns for one in job.others)
    if late <= 0 or not _LONG.reached(late, late / max(job.wall_ns, 1)):
        return
    lines = _longer_here(job)
    yield Standing(
        cause=CAUSE.id,
        attributed_ns=0,
        detail=f"rank {job.rank}, {duration(late)} after all others",
        evidence=(
            evidence.time("it was ready for its first step later than all others by", late),
            evidence.share("of the whole job", min(late / max(job.wall_ns, 1), 1.0)),
            *(evidence.time(f"longer than on any other rank, at {file}:{at}", ns)
              for (file, at, _), ns in lines.most_common(2)),
        ),
        code=heaviest({line: float(ns) for line, ns in lines.items()}),
        ranks=(job.rank,),
        confidence=0.9,
        severity="info",
        saves=saving(_REMOVED, job, late, 0),
    )  # fmt: skip


def _longer_here(job: WholeJob) -> Counter[_Line]:
    """The lines of this rank, by the time that they take longer than on any other."""
    here, others = _by_line(job.before_steps), [_by_line(one.places) for one in job.others]
    longer = {line: ns - max(other[line] for other in others) for line, ns in here.items()}
    return Counter({line: ns for line, ns in longer.items() if ns > 0})


def _by_line(places: Sequence[JobPlace]) -> Counter[_Line]:
    """The time at each line, waits for other ranks left out."""
    found: Counter[_Line] = Counter()
    for place in places:
        if place.work not in ("group", "ranks"):
            found[place.file, place.line, place.text or place.function] += place.ns
    return found


RULE = Rule(CAUSE, (Finder(of_watched, ("job",)),))
