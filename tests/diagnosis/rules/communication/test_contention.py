"""communication.contention: no rule looks for it; kernels that are slower beside a collective are no slow clock."""

from __future__ import annotations

from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, message

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_kernels_that_a_collective_slows_down_are_not_blamed_on_the_clock() -> None:
    """In each step the kernels beside the collective take 1.4 times as long as those before it."""
    job = Job()
    for _ in job.steps(12):
        for _ in range(4):
            job.launch("gemm", 500_000, grid=[256, 1, 1])
        job.launch(NCCL, 2_700_000, stream=20, **message("allreduce", 200 << 20))
        for _ in range(4):
            job.launch("gemm", 700_000, grid=[256, 1, 1])
        job.wait()
    found = found_in(job.built)
    assert not {"device.throttled", "communication.contention"} & set(found)
