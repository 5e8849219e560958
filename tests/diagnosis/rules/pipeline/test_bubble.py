"""pipeline.bubble: stages with too few micro-batches on their way fire it, by their messages; many do not."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import case_of, found_in, line, run
from tests.diagnosis.jobs import GAP_NS, LATENCY_NS, Job, is_worth, message, together

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.testing import trace

FORWARD_NS: Final = 1_000_000
MESSAGE_NS: Final = 10_000
NCCL: Final = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def pipeline(
    stages: int,
    micro_batches: int,
    *,
    lasts: tuple[int, ...] | None = None,
    kernel: str = NCCL,
    compute: str = "gemm",
    api: str = "cuda",
) -> list[Job]:
    """Eight steps in which each stage computes all micro-batches, as soon as the one before has sent them."""
    jobs = [Job(api=api) for _ in range(stages)]
    lasts = lasts or (FORWARD_NS,) * stages
    for _ in together(jobs, 8):
        begin = max(job.at for job in jobs)
        for job in jobs:
            job.at = begin
        sent = [begin] * micro_batches
        for stage, job in enumerate(jobs):
            for micro in range(micro_batches):
                if stage:
                    record = message("recv", 1 << 20, ranks=(stage - 1, stage), group=f"p2p{stage}")
                    runs = max(job.at + LATENCY_NS, job.busy_until.get(7, -GAP_NS) + GAP_NS)
                    job.launch(kernel, max(sent[micro] - runs, MESSAGE_NS), **record)
                job.launch(compute, lasts[stage])
                if stage + 1 < stages:
                    record = message("send", 1 << 20, ranks=(stage, stage + 1), group=f"p2p{stage + 1}")
                    job.launch(kernel, MESSAGE_NS, **record)
                sent[micro] = job.busy_until[7]
        until = max(job.busy_until[7] for job in jobs)
        for job in jobs:
            job.busy_until[7] = until
            job.wait()
    return jobs


@pytest.mark.parametrize(
    ("stages", "micro_batches", "kernel", "compute", "api"),
    [
        (2, 2, NCCL, "gemm", "cuda"),
        (4, 4, NCCL, "gemm", "cuda"),
        (
            4,
            4,
            "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
            "Cijk_Alik_Bljk_BBS_BH_MT256x128x64",
            "hip",
        ),
        (4, 4, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "gemm", "cuda"),
    ],
)
def test_four_times_as_many_micro_batches_are_worth_three_quarters_of_the_bubble(
    stages: int, micro_batches: int, kernel: str, compute: str, api: str
) -> None:
    """A step of m micro-batches through p stages takes m + p - 1 of their times (reference: causes.md)."""
    jobs = pipeline(stages, micro_batches, kernel=kernel, compute=compute, api=api)
    finding = found_in(*(job.built for job in jobs))["pipeline.bubble"]
    whole = micro_batches + stages - 1
    smaller = (4 * micro_batches + stages - 1) / 4
    is_worth(finding, whole / smaller, within=0.02)
    values = {one.what: one.value for one in finding.evidence}
    assert values["stages"] == stages
    assert values["micro-batches"] == micro_batches
    assert values["bubble by the schedule, (p - 1) / (m + p - 1)"] == pytest.approx((stages - 1) / whole, rel=0.01)


def test_a_pipeline_of_many_micro_batches_is_full() -> None:
    """Two stages and 32 micro-batches: 3 % of the step, of which a part may go away."""
    assert "pipeline.bubble" not in found_in(*(job.built for job in pipeline(2, 32)))


def test_ranks_that_reduce_are_no_stages() -> None:
    jobs = [Job() for _ in range(2)]
    for _ in together(jobs, 8):
        for job in jobs:
            job.launch("gemm", FORWARD_NS)
            job.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", MESSAGE_NS, **message("allreduce", 1 << 20))
            job.wait()
            job.python(FORWARD_NS)
    assert "pipeline.bubble" not in found_in(*(job.built for job in jobs))


def test_a_stage_without_the_others_is_not_judged() -> None:
    assert "pipeline.bubble" not in found_in(pipeline(4, 4)[1].built)
    assert "pipeline.bubble" not in found_in(*(job.built for job in pipeline(4, 4)[:2]))


def on_cpus(
    micro_batches: int, works: float, *, at: str = "distributed_c10d:recv", seen: float | None = None
) -> dict[str, Finding]:
    """Two watched stages on CPUs, each of which works so much of a step and waits for the other's messages else.

    ``seen`` is how often it was found where it waits.
    """
    built = []
    for rank in range(2):
        one = trace()
        for step in range(8):
            begin = 1_000_000 * step
            one.step(step, at=begin, lasts=1_000_000)
            for micro in range(micro_batches):
                # The second stage computes between what it gets and what it sends back.
                own = begin + 1_000_000 * micro // micro_batches + (400_000 // micro_batches) * rank
                one.operator("aten::mm", at=own + 20_000 // micro_batches, lasts=300_000 // micro_batches)
                for name, after in (("gloo:recv", 0), ("gloo:send", 350_000)):
                    one.annotation(name, at=own + after // micro_batches, lasts=10_000 // micro_batches)
        built.append(one)
    waits = 1 - works if seen is None else seen
    where = [line(waits, "dist.recv(g, src=1)", leaf=f"torch.distributed.{at}", at=82)]
    runs = [run(rank=rank, on_cpu_share=works, places=where) for rank in range(2)]
    found = diagnose(case_of(*built, facts=RunFacts(cores=8, threads=1, processes=2), runs=runs), RULES)
    return {finding.id: finding for finding in found.findings if finding.severity != "info"}


def test_stages_that_wait_for_each_micro_batch_to_come_back_are_worth_what_filling_the_schedule_brings() -> None:
    """Of eight micro-batches one is computed at a time, by two stages: sixteen times, where nine would do."""
    finding = on_cpus(8, 0.5)["pipeline.bubble"]
    is_worth(finding, 16 / 9, within=0.02)
    assert "before it goes on with the next" in finding.title
    assert finding.remedy is not None
    assert "1F1B" in finding.remedy.text
    assert [one.line for one in finding.code] == [82]
    assert finding.scope.ranks == [0, 1]


def test_one_micro_batch_alone_is_worth_what_four_bring() -> None:
    finding = on_cpus(1, 0.5)["pipeline.bubble"]
    is_worth(finding, 2 / (5 / 4), within=0.02)
    assert "before it goes on" not in finding.title


@pytest.mark.parametrize(
    ("micro_batches", "works", "at"),
    [
        pytest.param(8, 8 / 9, "distributed_c10d:recv", id="as the schedule has it"),
        pytest.param(8, 0.5, "distributed_c10d:all_reduce", id="it waits for sums"),
    ],
)
def test_stages_that_wait_no_longer_or_for_something_else_are_none(micro_batches: int, works: float, at: str) -> None:
    assert "pipeline.bubble" not in on_cpus(micro_batches, works, at=at)


def test_work_between_messages_is_not_taken_for_waiting() -> None:
    """Lines that wait are counted as far as the thread is off its core."""
    assert "pipeline.bubble" not in on_cpus(8, 0.95, seen=0.5)
