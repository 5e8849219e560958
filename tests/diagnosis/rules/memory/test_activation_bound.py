"""memory.activation-bound: no rule looks for it; memory that rises and falls in each step does not grow."""

from __future__ import annotations

from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job


def test_activations_that_are_freed_again_are_no_growth() -> None:
    job = Job()
    for _ in job.steps(12):
        for place in range(4):
            job.launch("gemm", 500_000)
            job.built.memory(at=job.at, size=1 << 30, allocated=(1 + place) << 30, reserved=5 << 30)
        job.built.memory(at=job.at + 1_000, size=-(3 << 30), allocated=1 << 30, reserved=5 << 30)
        job.wait()
    assert found_in(job.built) == {}
