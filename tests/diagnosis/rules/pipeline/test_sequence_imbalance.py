"""pipeline.sequence-imbalance: no rule looks for it; ranks that take turns in being late are no slow rank."""

from __future__ import annotations

from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, meet, message, together

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_long_sequences_that_fall_to_any_rank_make_none_guilty() -> None:
    """In each step another rank has the longest sequences: the waits are real, and no rank is to blame."""
    jobs = [Job() for _ in range(4)]
    for number in together(jobs, 12):
        for rank, job in enumerate(jobs):
            job.launch("gemm", 2_000_000 + (1_000_000 if rank == number % 4 else 0))
        meet(jobs, NCCL, 200_000, **message("allreduce", 32 << 20, ranks=(0, 1, 2, 3)))
        for job in jobs:
            job.wait()
    found = found_in(*(job.built for job in jobs))
    assert not {"communication.straggler", "pipeline.sequence-imbalance", "pipeline.stage-imbalance"} & set(found)
