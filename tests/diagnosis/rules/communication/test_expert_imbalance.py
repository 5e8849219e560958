"""communication.expert-imbalance: uneven kernels between exchanges fire it, by any library's names;
even and slow ranks do not.
"""

from __future__ import annotations

import random
from typing import Any, Final

import pytest
from tests.diagnosis.cases import STEP_NS, case_of, found_in, run
from tests.diagnosis.jobs import Job, is_worth, meet, message, shaped, together

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.testing import trace

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


@pytest.mark.parametrize("share", [1.08, 1.15, 1.3])
def test_less_uneven_ones_are_worth_what_they_have_above_the_mean(share: float) -> None:
    """All other work takes the same on each rank: then a small part more is the experts', and no slow rank's."""
    jobs = training((share, *[(4 - share) / 3] * 3), shared_ns=400_000)
    whole = jobs[0].step_ns
    is_worth(
        found_in(*(job.built for job in jobs))["communication.expert-imbalance"],
        whole / (whole - EXPERT_NS * (share - 1)),
        within=0.01,
    )


DEEP_EP: Final = (
    "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, float*)",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u>",
    "void deep_ep::internode_ll::combine<false, 7168, 9>(void*, void*)",
)


def eight(
    uneven: float,
    *,
    kernels: tuple[str, str, str] = (NCCL, GROUPED, NCCL),
    noise: float = 0.01,
    slower: float = 1.0,
    recorded: bool = True,
) -> tuple[list[Job], float]:
    """Eight ranks, six layers, and what the rank with most tokens has above the mean in a step.

    Who has most is drawn anew for each layer; every other kernel scatters by ``noise``.
    """
    drawn = random.Random(5)  # noqa: S311 - to be drawn alike each time
    jobs = [Job() for _ in range(8)]
    record: dict[str, Any] = message("all_to_allv", 16 << 20, ranks=tuple(range(8))) if recorded else {}
    above = 0.0
    for _ in together(jobs, 6):
        for _ in range(6):
            for rank, job in enumerate(jobs):
                job.launch(
                    "nvjet_tst_128x256_64x4_1x2_h_bz_TNT",
                    round(300_000 * (1 + drawn.gauss(0, noise)) * (slower if rank == 3 else 1)),
                )
            meet(jobs, kernels[0], 50_000, **record)
            lasts = [400_000 * (1 + drawn.gauss(0, max(uneven, noise))) for _ in jobs]
            lasts[3] *= slower
            above += max(lasts) - sum(lasts) / len(lasts)
            for job, expert in zip(jobs, lasts, strict=True):
                job.launch(kernels[1], round(expert))
            meet(jobs, kernels[2], 50_000, **record)
        for job in jobs:
            job.wait()
    return jobs, above / 6


@pytest.mark.parametrize("uneven", [0.07, 0.15, 0.4])
@pytest.mark.parametrize(
    ("kernels", "recorded"), [((NCCL, GROUPED, NCCL), True), (DEEP_EP, False)], ids=["NCCL", "DeepEP"]
)
def test_each_layer_has_a_busiest_rank_of_its_own(uneven: float, kernels: tuple[str, str, str], recorded: bool) -> None:
    jobs, above = eight(uneven, kernels=kernels, recorded=recorded)
    whole = sum(job.step_ns for job in jobs) / len(jobs)
    finding = found_in(*(job.built for job in jobs))["communication.expert-imbalance"]
    is_worth(finding, whole / (whole - above), within=0.02)


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(training((1.0, 1.0, 1.0, 1.0)), id="even"),
        pytest.param(eight(0.0)[0], id="every kernel scatters by one in a hundred"),
        pytest.param(eight(0.02, noise=0.02)[0], id="experts no more than the rest"),
        pytest.param(eight(0.0, slower=1.1)[0], id="one rank of eight is slow at everything"),
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


EXPERT: Final = [512, 128]
SHARED: Final = [128, 128]
# What a row of an expert's layer takes, so that of shares of 90 and 30 % of a step 60 % are 600 rows more of two layers
# with their gradients.
ROW_NS: Final = round(0.6 * STEP_NS / (600 * 2 * 3))


def on_cpus(
    *shares: float,
    rows: tuple[int, ...],
    shared_rows: tuple[int, ...] | None = None,
    exchanges: str = "gloo:all_to_all",
    goes_back: bool = False,
    row_ns: int = ROW_NS,
) -> dict[str, Finding]:
    """Ranks of a watched job on CPUs, whose threads work so much of a step: the rows of their experts and of the rest.

    An expert is two layers between two exchanges, a row of which takes ``row_ns``, and all that is shared one between
    others. It ``goes_back`` before what is exchanged comes back: of a forward pass there is but one exchange then.
    """
    built = []
    for own, others in zip(rows, shared_rows or (200,) * len(rows), strict=True):
        one = trace()
        for step in range(8):
            at = STEP_NS * step
            one.step(step, at=at, lasts=STEP_NS)
            for place, weight in enumerate((EXPERT, EXPERT[::-1])):
                begin = at + STEP_NS * (20 + 20 * place) // 100
                sizes = shaped([own, weight[1]], weight, weight[:1])
                one.operator("aten::linear", at=begin, lasts=max(own * row_ns, 1), **sizes)
            sizes = shaped([others, 4, 128], SHARED, SHARED[:1])
            one.operator("aten::linear", at=at + STEP_NS * 72 // 100, lasts=STEP_NS * 5 // 100, **sizes)
            engine = "autograd::engine::evaluate_function: AddmmBackward0"
            one.operator(engine, at=at + STEP_NS * (61 if goes_back else 90) // 100, lasts=STEP_NS // 100)
            for begin in (12, 65, 80):
                one.annotation(exchanges, at=at + STEP_NS * begin // 100, lasts=STEP_NS * 5 // 100)
        built.append(one)
    runs = [run(rank=rank, on_cpu_share=share) for rank, share in enumerate(shares)]
    found = diagnose(case_of(*built, facts=RunFacts(cores=8, threads=1, processes=len(shares)), runs=runs), RULES)
    return {finding.id: finding for finding in found.findings if finding.severity != "info"}


@pytest.mark.parametrize("busiest", [0, 1])
def test_the_rank_whose_experts_multiply_more_rows_is_named_with_what_sharing_them_out_brings(busiest: int) -> None:
    """It works for 90 % of a step and the other for 30 %: shared out both work for 60 %."""
    shares, rows = ((0.9, 0.3), (800, 200)) if busiest == 0 else ((0.3, 0.9), (200, 800))
    found = on_cpus(*shares, rows=rows)
    assert "communication.straggler" not in found
    finding = found["communication.expert-imbalance"]
    assert finding.scope.ranks == [busiest]
    is_worth(finding, 0.9 / 0.6, within=0.1)
    assert {fact.what: fact.value for fact in finding.evidence}[
        "rows that its experts multiply above the mean of the ranks"
    ] == pytest.approx(0.6)


def test_a_rank_that_is_hardly_later_is_none() -> None:
    found = on_cpus(0.92, 0.9, rows=(800, 200))
    assert "communication.expert-imbalance" not in found


def test_work_that_every_token_passes_through_differs_a_little_from_rank_to_rank() -> None:
    assert "communication.expert-imbalance" in on_cpus(0.9, 0.3, rows=(800, 200), shared_rows=(204, 200))


def test_of_several_busy_ranks_all_are_named_and_what_the_mean_brings() -> None:
    """Above their mean of 550 rows one has 350 more, as 35 % of a step are above a mean of 55 %."""
    found = on_cpus(0.9, 0.8, 0.3, 0.2, rows=(900, 800, 300, 200))
    finding = found["communication.expert-imbalance"]
    assert finding.scope.ranks == [0, 1]
    is_worth(finding, 0.9 / 0.55, within=0.1)


@pytest.mark.parametrize(
    "about",
    [
        pytest.param({"rows": (500, 500)}, id="as many rows"),
        pytest.param({"rows": (200, 800)}, id="the other rank has more"),
        pytest.param({"rows": (800, 200), "shared_rows": (320, 80)}, id="all that it has is more"),
        pytest.param({"rows": (800, 200), "exchanges": "gloo:all_reduce"}, id="nothing is exchanged"),
        pytest.param({"rows": (800, 200), "goes_back": True}, id="longer histories beside exchanged embeddings"),
        pytest.param({"rows": (0, 0)}, id="experts that nobody chose"),
        pytest.param({"rows": (800, 200), "row_ns": ROW_NS // 4}, id="they take a quarter of what it works longer"),
    ],
)
def test_a_late_rank_for_another_reason_is_told_as_one(about: dict[str, Any]) -> None:
    found = on_cpus(0.9, 0.3, **about)
    assert "communication.expert-imbalance" not in found
    assert "communication.straggler" in found
