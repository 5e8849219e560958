"""Changes of the whole job between two watched runs: its length, the time to its first step, and each of its parts."""

from __future__ import annotations

from typing import Final

from whystall.analysis.whole_job import WholeJob
from whystall.diagnosis.time_changes import Change

FIRST_STEP: Final = "first-step"
JOB: Final = "job"
# Looks at the main thread are 0.04 s apart, and the start of the same job differs by 3 % between runs
# (reference: whole-job.md, section 2.1, A/A noise); one run of each side says no more.
_LEAST_NS: Final = 200_000_000
_NOISE: Final = 0.05


def job_changes(base: WholeJob | None, candidate: WholeJob | None) -> list[Change]:
    """Changes by name: the whole and the first step, then parts by the size of their change.

    Empty where a run was not watched from its start. Parts that are short on both sides are left out.
    """
    if base is None or candidate is None:
        return []
    before, after = _parts(base), _parts(candidate)
    names = {name for name in (*before, *after) if max(before.get(name, 0), after.get(name, 0)) >= _LEAST_NS}
    parts = [_change(name, before.get(name, 0), after.get(name, 0)) for name in sorted(names)]
    whole = [_change(JOB, base.wall_ns, candidate.wall_ns)]
    if base.first_step_ns is not None and candidate.first_step_ns is not None:
        whole.append(_change(FIRST_STEP, base.first_step_ns, candidate.first_step_ns))
    return [*whole, *sorted(parts, key=lambda one: -abs(one.delta_ns))]


def _parts(job: WholeJob) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in job.parts:
        found[one.part] = found.get(one.part, 0) + one.ns
    return found


def _change(name: str, base: int, candidate: int) -> Change:
    delta = candidate - base
    return Change(
        kind="job",
        name=name,
        base_ns=base,
        candidate_ns=candidate,
        delta_ns=delta,
        beyond_noise=abs(delta) > max(_LEAST_NS, _NOISE * max(base, candidate)),
    )
