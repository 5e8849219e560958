"""inference.sampling-sync: no rule looks for it; a token that is read in each step is a wait like any other."""

from __future__ import annotations

from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job


def test_reading_each_token_is_a_synchronisation() -> None:
    """Four products of 200 us a step, then the token is read, and 400 us of host work follow before the next launch."""
    job = Job()
    for _ in job.steps(20):
        for _ in range(4):
            job.operator("aten::mm", "gemm", 200_000)
        job.operator("aten::argmax", "reduce", 5_000)
        with job.inside("aten::item"):
            job.wait()
        for _ in range(40):
            job.operator("aten::view")
    found = found_in(job.built)
    assert "host.sync" in found
    assert "inference.sampling-sync" not in found
