"""input.rank-skew: ranks whose shapes differ from step to step fire it; a rank that always has more, ranks that are
late without more to compute, and experts do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from tests.diagnosis.cases import STEP_NS, case_of, found_in, run
from tests.diagnosis.jobs import A100, Job, is_worth, meet, message, shaped, together

from whystall.analysis.run_results import UnevenSteps
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.testing import trace

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
    steps: int = 12,
) -> list[Job]:
    """Steps with a product of 1 us for each token, and a kernel that takes as long without recorded shapes."""
    jobs = [Job(A100, api=api) for _ in range(RANKS)]
    for number in together(jobs, steps):
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


@pytest.mark.parametrize(("steps", "told"), [(2, False), (3, True), (4, True)])
def test_a_recording_of_few_steps_is_enough(steps: int, *, told: bool) -> None:
    jobs = training(rotating, steps=steps)
    assert ("input.rank-skew" in found_in(*(job.built for job in jobs))) == told


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


def on_cpus(
    tokens: Callable[[int, int], int],
    *,
    above: float = 0.25,
    usual: float = 0.2,
    of_one_rank: float = 0.0,
    apart: float = 0.01,
    products: Callable[[int, int], int] = lambda _rank, _step: 1,
    collective: str = "gloo:all_reduce",
    on_core: float = 0.6,
    every: int = 1,
) -> dict[str, Finding]:
    """Two watched ranks on CPUs, six recorded steps of products of so many tokens and, in ``every`` nth, a collective.

    What the rank that works most in a step works above the mean, as shares of the step: in the mean, in the median,
    and of one and the same rank; and by how much longer the same step is on one of them.
    """
    uneven = UnevenSteps(
        steps=90,
        above_ns=round(above * STEP_NS),
        usual_ns=round(usual * STEP_NS),
        of_one_rank_ns=round(of_one_rank * STEP_NS),
        apart_ns=round(apart * STEP_NS),
    )
    built = []
    for rank in range(2):
        one = trace()
        for number in range(6):
            at = number * STEP_NS
            one.step(number, at=at, lasts=STEP_NS)
            count = tokens(rank, number)
            lasts = STEP_NS * count // 5000 // 4
            for place in range(products(rank, number)):
                one.operator("aten::mm", at=at + place * lasts, lasts=lasts, **shaped([count, 512], [512, 512]))
            if number % every == 0:
                one.annotation(collective, at=at + STEP_NS * 9 // 10, lasts=STEP_NS // 20)
        built.append(one)
    runs = [run(rank=rank, on_cpu_share=on_core, uneven=uneven) for rank in range(2)]
    facts = RunFacts(cores=8, threads=1, processes=2)
    found = diagnose(case_of(*built, facts=facts, runs=runs), RULES)
    assert found.failures == []
    return {finding.id: finding for finding in found.findings if finding.severity != "info"}


def test_of_a_watched_job_even_work_is_worth_what_the_rank_with_most_has_above_the_mean() -> None:
    finding = on_cpus(rotating)["input.rank-skew"]
    is_worth(finding, 1 / (1 - 0.25), within=0.01)
    assert finding.scope.ranks == [0, 1]
    assert finding.remedy is not None
    assert "rank::world" in (finding.remedy.patch or "")


def test_no_more_is_gained_than_ranks_wait() -> None:
    is_worth(on_cpus(rotating, on_core=0.85)["input.rank-skew"], 1 / (1 - 0.15), within=0.01)


@pytest.mark.parametrize(
    ("tokens", "about"),
    [
        pytest.param(equal, {}, id="inputs of one size"),
        pytest.param(rotating, {"of_one_rank": 0.2}, id="nearly always the same rank"),
        pytest.param(rotating, {"usual": 0.05}, id="few steps"),
        pytest.param(rotating, {"above": 0.05, "usual": 0.05}, id="hardly anything"),
        pytest.param(rotating, {"collective": "gloo:all_to_all"}, id="experts"),
        pytest.param(rotating, {"on_core": 0.97}, id="nobody waits"),
        pytest.param(rotating, {"apart": 0.2}, id="ranks that do not wait for each other in each step"),
        pytest.param(lambda rank, number: 2048 + 576 * ((rank + number) % 2), {}, id="inputs explain a quarter of it"),
        pytest.param(
            equal,
            {"products": lambda rank, number: 1 + 2 * ((rank + number) % 2)},
            id="layers that are left out by chance",
        ),
        pytest.param(rotating, {"every": 2}, id="weights are averaged now and then"),
    ],
)
def test_other_uneven_work_of_a_watched_job_is_none(tokens: Callable[[int, int], int], about: dict[str, Any]) -> None:
    assert "input.rank-skew" not in on_cpus(tokens, **about)
