"""pipeline.stage-imbalance: a stage with more compute than the mean fires it, on any vendor; even stages do not."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import case_of, found_in, run
from tests.diagnosis.jobs import Job, is_worth, meet, message, together

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.testing import trace

MICRO_BATCHES: Final = 12
FORWARD_NS: Final = 1_000_000
MESSAGE_NS: Final = 10_000
NCCL: Final = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
HIP: Final = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"


def pipeline(lasts: tuple[int, int], *, kernel: str = NCCL, compute: str = "gemm", api: str = "cuda") -> list[Job]:
    """Eight steps of twelve micro-batches through two stages, which compute for so long on each."""
    jobs = [Job(api=api) for _ in range(2)]
    first, second = jobs
    for _ in together(jobs, 8):
        first.at = second.at = max(job.at for job in jobs)
        for _ in range(MICRO_BATCHES):
            first.launch(compute, lasts[0])
            # A message is passed when both are there.
            meet(jobs, kernel, MESSAGE_NS, *(message(what, 1 << 20, group="p2p") for what in ("send", "recv")))
            second.launch(compute, lasts[1])
        meet(jobs, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", MESSAGE_NS, **message("allreduce", 1 << 20, group="all"))
        for job in jobs:
            job.wait()
    return jobs


@pytest.mark.parametrize(
    ("kernel", "compute", "api"),
    [
        (NCCL, "gemm", "cuda"),
        (HIP, "Cijk_Alik_Bljk_BBS_BH_MT256x128x64", "hip"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "gemm", "cuda"),
    ],
)
def test_the_last_stage_with_the_head_is_worth_what_it_has_above_the_mean(kernel: str, compute: str, api: str) -> None:
    """Of 1.0 and 1.6 the mean is 1.3: twelve micro-batches and one to fill, instead of twelve of 1.6 and one of 1.0."""
    jobs = pipeline((FORWARD_NS, 1_600_000), kernel=kernel, compute=compute, api=api)
    finding = found_in(*(job.built for job in jobs))["pipeline.stage-imbalance"]
    assert finding.scope.ranks == [1]
    assert finding.gain is not None
    truth = (MICRO_BATCHES * 1.6 + 1.0) / (MICRO_BATCHES * 1.3 + 1.3)
    assert finding.gain.floor <= truth <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(truth, rel=0.05)
    assert finding.evidence[1].value == pytest.approx(1.6 / 1.3, rel=0.02)


@pytest.mark.parametrize("lasts", [(FORWARD_NS, FORWARD_NS), (FORWARD_NS, 1_060_000), (1_060_000, FORWARD_NS)])
def test_even_stages_are_none(lasts: tuple[int, int]) -> None:
    """Of 1.00 and 1.06 the slower is 3 % above the mean, below the 5 % of the reference."""
    assert "pipeline.stage-imbalance" not in found_in(*(job.built for job in pipeline(lasts)))


def test_a_slow_rank_that_only_reduces_is_no_stage() -> None:
    jobs = [Job() for _ in range(2)]
    for _ in together(jobs, 8):
        for lasts, job in zip((FORWARD_NS, 1_600_000), jobs, strict=True):
            job.launch("gemm", lasts)
        meet(jobs, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", MESSAGE_NS, **message("allreduce", 1 << 20))
        for job in jobs:
            job.wait()
    assert "pipeline.stage-imbalance" not in found_in(*(job.built for job in jobs))


Messages = tuple[tuple[str, int], ...]
# The first stage computes, sends and gets; the last one gets, computes and sends.
STAGES: Final[tuple[Messages, ...]] = (
    (("gloo:send", 650_000), ("gloo:recv", 700_000)),
    (("gloo:recv", 20_000), ("gloo:send", 650_000)),
)
# Both compute and then exchange what they have; of two ranks one begins by getting, or both send at once.
EXCHANGES: Final[tuple[tuple[Messages, ...], ...]] = (
    ((("gloo:send", 650_000), ("gloo:recv", 700_000)), (("gloo:recv", 650_000), ("gloo:send", 700_000))),
    ((("gloo:send", 650_000), ("gloo:recv", 700_000)),) * 2,
    ((("gloo:recv", 20_000), ("gloo:send", 50_000)), (("gloo:send", 20_000), ("gloo:recv", 50_000))),
)
SUMS: Final[tuple[Messages, ...]] = ((("gloo:all_reduce", 650_000),),) * 2


def on_cpus(*shares: float, whats: tuple[Messages, ...] = STAGES) -> dict[str, Finding]:
    """Ranks of a watched job on CPUs, whose training threads work so much of a step, and what they send each other."""
    built = []
    for rank in range(len(shares)):
        one = trace()
        for step in range(8):
            at = 1_000_000 * step
            one.step(step, at=at, lasts=1_000_000).operator("aten::mm", at=at + 100_000, lasts=500_000)
            for name, begin in whats[rank]:
                one.annotation(name, at=at + begin, lasts=10_000)
        built.append(one)
    runs = [run(rank=rank, on_cpu_share=share) for rank, share in enumerate(shares)]
    found = diagnose(case_of(*built, facts=RunFacts(cores=8, threads=1, processes=2), runs=runs), RULES)
    return {finding.id: finding for finding in found.findings if finding.severity != "info"}


@pytest.mark.parametrize(("heavy", "light", "fires"), [(0.92, 0.33, True), (0.33, 0.92, True), (0.90, 0.78, False)])
def test_stages_on_cpus_are_compared_by_what_their_threads_work(heavy: float, light: float, *, fires: bool) -> None:
    """Nine layers beside three could be six beside six; seven beside six cannot be better."""
    found = on_cpus(heavy, light)
    assert "communication.straggler" not in found
    assert ("pipeline.stage-imbalance" in found) is fires
    if fires:
        finding = found["pipeline.stage-imbalance"]
        assert finding.scope.ranks == [0 if heavy > light else 1]
        assert finding.gain is not None
        # In twelve micro-batches each stage's mean takes 62.5, and the first passes through the other stage.
        even = (62.5 + 62.5 / 12) / (92 + 33 / 12)
        assert finding.gain.floor <= 1 / even <= finding.gain.ceiling
        is_worth(finding, 1 / even, within=0.12)


@pytest.mark.parametrize("whats", [SUMS, *EXCHANGES])
def test_ranks_that_sum_or_exchange_are_no_stages(whats: tuple[Messages, ...]) -> None:
    assert list(on_cpus(0.92, 0.33, whats=whats)) == ["communication.straggler"]
