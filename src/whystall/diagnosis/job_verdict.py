"""The verdict on a whole job: what is worth more of it, a cause outside of steps or one of the steady steps."""

from __future__ import annotations

from typing import Final

import msgspec

from whystall.analysis.whole_job import WholeJob
from whystall.diagnosis.finding import Diagnosis, Finding, JobSaving, Verdict
from whystall.diagnosis.gains import severity_of
from whystall.diagnosis.units import duration

_LEAST: Final = 0.1
"""Share of the job from which a cause outside of steps may be the headline (reference: whole-job.md, section 4)."""


def of_whole_job(job: WholeJob | None, verdict: Verdict, diagnosis: Diagnosis) -> tuple[Verdict, Diagnosis]:
    """The verdict and the findings, with the cause outside of steps first where it saves more of the job's time.

    A cause whose removal may save nothing is no headline.
    """
    best = _costliest(diagnosis.findings)
    if job is None or best is None or best.saves is None or not best.saves.floor_ns:
        return verdict, diagnosis
    saved = best.saves.expected_ns
    if saved < _LEAST * job.wall_ns or saved <= _saved_in_steps(job, verdict):
        return verdict, diagnosis
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


def _costliest(findings: list[Finding]) -> Finding | None:
    return max(findings, key=lambda one: (one.saves or _NOTHING).expected_ns, default=None)


_NOTHING: Final = JobSaving(floor_ns=0, expected_ns=0, ceiling_ns=0, first_step_ns=0)


def _saved_in_steps(job: WholeJob, verdict: Verdict) -> float:
    """The time that the verdict's cause saves over all steps of the job."""
    steps = sum(part.ns for part in job.parts if part.part == "steps")
    return steps * (1 - 1 / max(verdict.gain.expected, 1.0)) if verdict.gain is not None else 0.0
