"""input.rank-skew: no rule looks for it; a rank with more to do is named as the slow one."""

from __future__ import annotations

from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, meet, message, together

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_a_rank_with_longer_inputs_is_a_straggler() -> None:
    jobs = [Job() for _ in range(2)]
    for _ in together(jobs, 12):
        for rank, job in enumerate(jobs):
            job.launch("gemm", 2_000_000 * (1 + rank))
        meet(jobs, NCCL, 200_000, **message("allreduce", 32 << 20))
        for job in jobs:
            job.wait()
    found = found_in(*(job.built for job in jobs))
    assert found["communication.straggler"].scope.ranks == [1]
    assert "input.rank-skew" not in found
