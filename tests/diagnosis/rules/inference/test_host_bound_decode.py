"""inference.host-bound-decode: no rule looks for it; decoding that waits for launches is told as any such job."""

from __future__ import annotations

from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job


def test_short_kernels_of_a_decoder_are_launch_bound() -> None:
    """Forty kernels of 3 us a step, each of which the host takes 10 us to launch, without a backward pass."""
    job = Job()
    for _ in job.steps(20):
        for _ in range(40):
            job.operator("aten::mm", "gemv", 3_000)
        job.wait()
    found = found_in(job.built)
    assert "host.launch-bound" in found
    assert "inference.host-bound-decode" not in found
