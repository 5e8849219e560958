"""input.rank-skew: ranks whose shapes differ from step to step fire it; a rank that always has more, ranks that are
late without more to compute, and experts do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, Job, is_worth, meet, message, shaped, together

NCCL: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
RCCL: Final = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
RANKS: Final = 4
TOKENS: Final = (1024, 2048, 3072, 4096)


def training(
    tokens: Callable[[int, int], int],
    *,
    late: Callable[[int, int], float] = lambda _rank, _step: 1.0,
    api: str = "cuda",
    record: str = "allreduce",
    kernel: str = NCCL,
) -> list[Job]:
    """Twelve steps of products of so many tokens, 1 us each, and of as much again that no shapes were recorded of."""
    jobs = [Job(A100, api=api) for _ in range(RANKS)]
    for number in together(jobs, 12):
        for rank, job in enumerate(jobs):
            count = tokens(rank, number)
            lasts = round(count * 1_000 * late(rank, number))
            shapes = shaped([count, 4096], [4096, 4096], dtype="c10::BFloat16")
            job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_nn", lasts, **shapes)
            job.launch("void at::native::vectorized_elementwise_kernel<4>", lasts)
        meet(jobs, kernel, 100_000, **message(record, 32 << 20, ranks=tuple(range(RANKS))))
        for job in jobs:
            job.wait()
    return jobs


def rotating(rank: int, number: int) -> int:
    return TOKENS[(rank + number) % RANKS]


def equal(_rank: int, _number: int) -> int:
    return sum(TOKENS) // RANKS


@pytest.mark.parametrize(("kernel", "api"), [(NCCL, "cuda"), (RCCL, "hip")])
def test_inputs_of_equal_size_are_worth_what_the_largest_has_more(kernel: str, api: str) -> None:
    jobs = training(rotating, kernel=kernel, api=api)
    finding = found_in(*(job.built for job in jobs))["input.rank-skew"]
    is_worth(finding, jobs[0].step_ns / training(equal)[0].step_ns)
    assert finding.scope.ranks == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(training(equal), id="equal"),
        pytest.param(training(lambda rank, _: TOKENS[rank]), id="always the same rank"),
        pytest.param(training(equal, late=lambda rank, step: 1 + (rank + step) % 4), id="late without more to compute"),
        pytest.param(training(lambda rank, step: 2048 + 64 * ((rank + step) % 4)), id="a few per cent apart"),
        pytest.param(training(rotating, record="all_to_all"), id="experts"),
    ],
)
def test_other_lateness_is_none(jobs: list[Job]) -> None:
    assert "input.rank-skew" not in found_in(*(job.built for job in jobs))


def test_a_rank_that_always_has_longer_inputs_is_a_straggler() -> None:
    jobs = training(lambda rank, _: 1024 if rank < RANKS - 1 else 4096)
    assert found_in(*(job.built for job in jobs))["communication.straggler"].scope.ranks == [RANKS - 1]
