"""inference.prefill-interference: no rule looks for it; a step that is long now and then is not called a throttled
device, nor anything else.
"""

from __future__ import annotations

from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job


def test_a_prefill_between_decoding_steps_is_no_fault_of_the_device() -> None:
    """Every fifth step computes a prompt as well, by kernels of other sizes."""
    job = Job()
    for number in job.steps(20):
        for _ in range(4):
            job.launch("gemv", 200_000, grid=[64, 1, 1])
        if number % 5 == 0:
            job.launch("gemm", 4_000_000, grid=[1024, 1, 1])
        job.wait()
    found = found_in(job.built)
    assert not {one for one in found if one.startswith(("device.", "episodic.", "inference."))}
