"""The verdict on a whole job: what is worth more of it, a cause outside of steps or one of the steady steps."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from whystall.analysis.whole_job import WholeJob
from whystall.diagnosis.detectors.job_lines import imported
from whystall.diagnosis.finding import Diagnosis, Finding, JobSaving, Verdict
from whystall.diagnosis.gains import severity_of
from whystall.diagnosis.units import duration

_LEAST: Final = 0.1
"""Share of the job from which a cause outside of steps may be the headline (reference: whole-job.md, section 4)."""
_LARGE: Final = 0.25
"""The same for a single line outside of steps, where no cause was found: chosen, not measured."""


def of_whole_job(job: WholeJob | None, verdict: Verdict, diagnosis: Diagnosis) -> tuple[Verdict, Diagnosis]:
    """The verdict and the findings, with the cause outside of steps first where it saves more of the job's time.

    A cause whose removal may save nothing is no headline. Where there is no cause the verdict begins with the line that
    takes a large share of the job outside of steps: a fact, and no promise.
    """
    best = _costliest(diagnosis.findings)
    if job is None:
        return verdict, diagnosis
    if best is None or best.saves is None or not best.saves.floor_ns:
        return _with_longest_line(job, verdict), diagnosis
    saved = best.saves.expected_ns
    if saved < _LEAST * job.wall_ns or saved <= _saved_in_steps(job, verdict):
        return _with_longest_line(job, verdict), diagnosis
    first = msgspec.structs.replace(best, severity=severity_of(saved / job.wall_ns))
    findings = [first, *(one for one in diagnosis.findings if one is not best)]
    told = msgspec.structs.replace(
        verdict,
        summary=f"{best.title}; without it the job would end {duration(saved)} sooner (of {duration(job.wall_ns)}).",
        basis=f"A step by itself: {verdict.summary} {verdict.basis}".strip(),
        cause=best.id,
        gain=None,
        confidence=best.confidence,
    )
    return told, msgspec.structs.replace(diagnosis, findings=findings)


def _with_longest_line(job: WholeJob, verdict: Verdict) -> Verdict:
    """A verdict without a cause, behind the line outside of steps that takes a large share of the job."""
    if verdict.cause is not None:
        return verdict
    lines: Counter[tuple[str, str, int, str]] = Counter()
    start = "before the first step ends" if job.first_step_ns is not None else "and no step ended"
    for where, places in ((start, job.before_steps), ("after the last step", job.after_steps)):
        for place in places:
            if not imported(place):
                lines[where, place.file, place.line, place.text or place.function] += place.ns
    if not lines:
        return verdict
    (where, file, line, text), spent = lines.most_common(1)[0]
    share = spent / max(job.wall_ns, 1)
    if share < _LARGE:
        return verdict
    summary = (
        f"One line takes {min(share, 1.0) * 100:.0f} % of the job {where}: {file}:{line} {text} "
        f"({duration(spent)} of {duration(job.wall_ns)})."
    )
    return msgspec.structs.replace(verdict, summary=summary, basis=f"{verdict.summary} {verdict.basis}".strip())


def _costliest(findings: list[Finding]) -> Finding | None:
    return max(findings, key=lambda one: (one.saves or _NOTHING).expected_ns, default=None)


_NOTHING: Final = JobSaving(floor_ns=0, expected_ns=0, ceiling_ns=0, first_step_ns=0)


def _saved_in_steps(job: WholeJob, verdict: Verdict) -> float:
    """The time that the verdict's cause saves over all steps of the job."""
    steps = sum(part.ns for part in job.parts if part.part == "steps")
    return steps * (1 - 1 / max(verdict.gain.expected, 1.0)) if verdict.gain is not None else 0.0
