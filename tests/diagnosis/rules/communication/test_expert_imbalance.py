"""communication.expert-imbalance: uneven kernels between exchanges fire it, by any library's names;
even and slow ranks do not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth, meet, message, together

RANKS: Final = 4
SHARED_NS: Final = 1_500_000
EXPERT_NS: Final = 800_000
EXCHANGE_NS: Final = 100_000
NCCL: Final = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GROUPED: Final = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape>>"


def training(
    tokens: tuple[float, ...],
    *,
    kernels: tuple[str, str, str] = (NCCL, GROUPED, NCCL),
    api: str = "cuda",
    slower: float = 1.0,
    collective: str = "all_to_allv",
    shared_ns: int = SHARED_NS,
    rotating: bool = False,
) -> list[Job]:
    """Eight steps of attention, and of experts between two exchanges, on four ranks with shares of the tokens."""
    jobs = [Job(api=api) for _ in range(RANKS)]
    dispatch, expert, combine = kernels
    record: dict[str, Any] = message(collective, 16 << 20, ranks=tuple(range(RANKS)))
    for number in together(jobs, 8):
        for rank, job in enumerate(jobs):
            job.launch("nvjet_tst_128x256_64x4_1x2_h_bz_TNT", round(shared_ns * (slower if rank == 0 else 1)))
        meet(jobs, dispatch, EXCHANGE_NS, **record)
        for rank, job in enumerate(jobs):
            share = tokens[(rank + number) % RANKS if rotating else rank]
            job.launch(expert, round(EXPERT_NS * share * (slower if rank == 0 else 1)))
        meet(jobs, combine, EXCHANGE_NS, **record)
        for job in jobs:
            job.wait()
    return jobs


UNEVEN: Final = (2.2, 0.6, 0.6, 0.6)


@pytest.mark.parametrize(
    ("kernels", "api"),
    [
        ((NCCL, GROUPED, NCCL), "cuda"),
        ((NCCL, "fused_moe_kernel", NCCL), "hip"),
        (
            (
                "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, float*)",
                "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u>",
                "void deep_ep::internode_ll::combine<false, 7168, 9>(void*, void*)",
            ),
            "cuda",
        ),
    ],
)
def test_the_busiest_rank_is_worth_what_it_has_above_the_mean(kernels: tuple[str, str, str], api: str) -> None:
    jobs = training(UNEVEN, kernels=kernels, api=api)
    finding = found_in(*(job.built for job in jobs))["communication.expert-imbalance"]
    assert finding.scope.ranks == [0]
    whole = jobs[0].step_ns
    is_worth(finding, whole / (whole - EXPERT_NS * (2.2 - 1.0)))


def test_experts_may_be_nearly_all_of_the_work() -> None:
    jobs = training(UNEVEN, shared_ns=400_000)
    whole = jobs[0].step_ns
    is_worth(
        found_in(*(job.built for job in jobs))["communication.expert-imbalance"], whole / (whole - EXPERT_NS * 1.2)
    )


def test_the_busiest_rank_may_be_another_in_each_step() -> None:
    jobs = training(UNEVEN, rotating=True)
    finding = found_in(*(job.built for job in jobs))["communication.expert-imbalance"]
    assert finding.scope.ranks == [0, 1, 2, 3]
    whole = jobs[0].step_ns
    is_worth(finding, whole / (whole - EXPERT_NS * 1.2))


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(training((1.0, 1.0, 1.0, 1.0)), id="even"),
        pytest.param(training((1.15, 0.95, 0.95, 0.95)), id="a tenth apart"),
        pytest.param(training((1.0, 1.0, 1.0, 1.0), slower=1.5), id="one rank is slow at everything"),
        pytest.param(
            training(
                UNEVEN, collective="allreduce", kernels=("ncclDevKernel_AllReduce", GROUPED, "ncclDevKernel_AllReduce")
            ),
            id="nothing is exchanged",
        ),
    ],
)
def test_even_experts_slow_ranks_and_other_jobs_are_none(jobs: list[Job]) -> None:
    assert "communication.expert-imbalance" not in found_in(*(job.built for job in jobs))
