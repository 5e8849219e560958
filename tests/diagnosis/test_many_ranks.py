"""Eight and 64 ranks on clocks of their own, with known truth: who is slow, why and what it costs."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import GAP_NS, LATENCY_NS, Job, is_worth, meet, message, together

COMPUTE_NS: Final = 2_000_000
REDUCE_NS: Final = 300_000
EXPERT_NS: Final = 800_000
NCCL: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EXCHANGE: Final = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GROUPED: Final = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape>>"
LATE: Final = 5
RANKS: Final = (8, 64)


def skewed(jobs: list[Job], seed: int = 3) -> list[Job]:
    """The same on clocks that are up to a second apart and drift by up to 50 parts in a million."""
    drawn = random.Random(seed)  # noqa: S311 - to be drawn alike each time
    for job in jobs:
        offset, drift = drawn.randrange(-1_000_000_000, 1_000_000_000), drawn.uniform(-50e-6, 50e-6)
        first = nanoseconds(job.built.events[0]["ts"])

        def moved(at: int, *, offset: int = offset, drift: float = drift, first: int = first) -> int:
            return at + offset + round(drift * (at - first))

        for event in job.built.events:
            spelt, begin = type(event["ts"]), nanoseconds(event["ts"])
            if "dur" in event:
                lasts = moved(begin + nanoseconds(event["dur"])) - moved(begin)
                event["dur"] = spelt(f"{lasts // 1000}.{lasts % 1000:03d}")
            begin = moved(begin)
            event["ts"] = spelt(f"{begin // 1000}.{begin % 1000:03d}")
    return jobs


def nanoseconds(microseconds: str) -> int:
    """Of decimal text with three places: a float has not so many."""
    return int(microseconds.replace(".", ""))


def data_parallel(
    count: int, *, python: int = 0, slower: float = 1.0, reduce_ns: int = REDUCE_NS, size: int = 64 << 20
) -> list[Job]:
    """Ten steps of four products and an all_reduce; one rank has Python beside them, or products that take longer."""
    drawn = random.Random(count)  # noqa: S311 - to be drawn alike each time
    jobs = [Job() for _ in range(count)]
    record = message("allreduce", size, ranks=tuple(range(count)))
    for number in together(jobs, 10):
        for rank, job in enumerate(jobs):
            if rank == LATE:
                job.python(python)
            for _ in range(4):
                lasts = COMPUTE_NS / 4 * (slower if rank == LATE else 1) * (1 + drawn.gauss(0, 0.005))
                job.operator("aten::mm", "nvjet_tst_128x256_64x4_1x2_h_bz_TNT", round(lasts))
        meet(jobs, NCCL, reduce_ns, **record, Seq=number)
        for job in jobs:
            job.wait()
    return jobs


def whole_of(jobs: list[Job]) -> float:
    return sum(job.step_ns for job in jobs) / len(jobs)


@pytest.mark.parametrize("count", RANKS)
def test_clocks_alone_are_nothing(count: int) -> None:
    """All that is left to say is that the reduction is not hidden, as it is on one clock."""
    straight = found_in(*(job.built for job in data_parallel(count)))
    crooked = found_in(*(job.built for job in skewed(data_parallel(count))))
    assert list(crooked) == list(straight) == ["communication.exposed"]
    gains = [one["communication.exposed"].gain for one in (straight, crooked)]
    assert gains[0] is not None
    assert gains[1] is not None
    assert gains[1].expected == pytest.approx(gains[0].expected, abs=5e-4)


@pytest.mark.parametrize("count", RANKS)
def test_python_on_one_rank_is_named_on_it_with_what_it_costs_all(count: int) -> None:
    stretch = 1_200_000
    jobs = skewed(data_parallel(count, python=stretch))
    whole = whole_of(jobs)
    finding = found_in(*(job.built for job in jobs))["host.python"]
    assert finding.scope.ranks == [LATE]
    is_worth(finding, whole / (whole - stretch))


@pytest.mark.parametrize("count", RANKS)
def test_a_device_that_is_slower_than_the_others_is_named(count: int) -> None:
    jobs = skewed(data_parallel(count, slower=1.4))
    whole = whole_of(jobs)
    finding = found_in(*(job.built for job in jobs))["communication.straggler"]
    assert finding.scope.ranks == [LATE]
    is_worth(finding, whole / (whole - 0.4 * COMPUTE_NS))


@pytest.mark.parametrize("count", RANKS)
def test_low_bandwidth_is_worth_what_a_network_moves(count: int) -> None:
    """At 10 GB/s on the bus; at the least at 70 % of a card of 400 Gb/s, which no device here is known to exceed."""
    size, factor = 256_000_000, 2 * (count - 1) / count
    slow, least = (round(size * factor / rate * 1e9) for rate in (2e9, 0.7 * 8e9))
    jobs = skewed(data_parallel(count, reduce_ns=slow, size=size))
    whole = whole_of(jobs)
    is_worth(found_in(*(job.built for job in jobs))["communication.low-bandwidth"], whole / (whole - slow + least))


def uneven_experts(count: int, *, always: bool) -> tuple[list[Job], float]:
    """Six steps of three layers, and how much longer the busiest experts take in a step than the mean.

    They are one rank's always, or another rank's each time.
    """
    drawn = random.Random(count)  # noqa: S311 - to be drawn alike each time
    jobs = [Job() for _ in range(count)]
    record: dict[str, Any] = message("all_to_allv", 16 << 20, ranks=tuple(range(count)))
    above = 0.0
    for _ in together(jobs, 6):
        for _ in range(3):
            for job in jobs:
                job.launch("nvjet_tst_128x256_64x4_1x2_h_bz_TNT", round(400_000 * (1 + drawn.gauss(0, 0.005))))
            meet(jobs, EXCHANGE, 50_000, **record)
            shares = [1 + drawn.gauss(0, 0.02 if always else 0.1) for _ in jobs]
            shares[LATE] += 0.4 if always else 0.0
            above += EXPERT_NS * (max(shares) - sum(shares) / count)
            for job, share in zip(jobs, shares, strict=True):
                job.launch(GROUPED, round(EXPERT_NS * share))
            meet(jobs, EXCHANGE, 50_000, **record)
        for job in jobs:
            job.wait()
    return jobs, above / 6


@pytest.mark.parametrize("count", RANKS)
@pytest.mark.parametrize("always", [True, False], ids=["one rank", "each time another"])
def test_uneven_experts_are_worth_what_the_busiest_has_above_the_mean(count: int, *, always: bool) -> None:
    jobs, above = uneven_experts(count, always=always)
    whole = whole_of(skewed(jobs))
    finding = found_in(*(job.built for job in jobs))["communication.expert-imbalance"]
    assert finding.scope.ranks == ([LATE] if always else list(range(count)))
    is_worth(finding, whole / (whole - above))


def pipeline(lasts: list[int], micro_batches: int) -> list[Job]:
    """Eight steps in which each stage computes all micro-batches as they come; then all reduce."""
    jobs = [Job() for _ in lasts]
    for _ in together(jobs, 8):
        sent = [0] * micro_batches
        for stage, (job, each) in enumerate(zip(jobs, lasts, strict=True)):
            for micro in range(micro_batches):
                if stage:
                    record = message("recv", 1 << 20, ranks=(stage - 1, stage), group=f"p2p{stage}")
                    runs = max(job.at + LATENCY_NS, job.busy_until.get(7, -GAP_NS) + GAP_NS)
                    job.launch(EXCHANGE, max(sent[micro] - runs, 10_000), **record)
                job.launch("nvjet_tst_128x256_64x4_1x2_h_bz_TNT", each)
                if stage + 1 < len(jobs):
                    record = message("send", 1 << 20, ranks=(stage, stage + 1), group=f"p2p{stage + 1}")
                    job.launch(EXCHANGE, 10_000, **record)
                sent[micro] = job.busy_until[7]
        meet(jobs, NCCL, 10_000, **message("allreduce", 1 << 20, ranks=tuple(range(len(jobs))), group="all"))
        for job in jobs:
            job.wait()
    return jobs


@pytest.mark.parametrize(("stages", "micro_batches"), [(8, 4), (8, 16), (16, 16)])
def test_stages_with_few_micro_batches_idle_in_bubbles(stages: int, micro_batches: int) -> None:
    """Of p - 1 + m slots p - 1 are bubbles: without any, and with four times as many micro-batches."""
    told = found_in(*(job.built for job in skewed(pipeline([1_000_000] * stages, micro_batches))))
    assert next(iter(told)) == "pipeline.bubble"
    gain = told["pipeline.bubble"].gain
    fill = (stages - 1) / micro_batches
    assert gain is not None
    assert gain.ceiling == pytest.approx(1 + fill, rel=0.05)
    assert gain.expected == pytest.approx((1 + fill) / (1 + fill / 4), rel=0.05)


@pytest.mark.parametrize("slow", [0, 3, 7])
def test_a_stage_with_more_to_do_is_named_with_what_balance_is_worth(slow: int) -> None:
    """Of 24 micro-batches: the slow stage's one after another, and the others' to fill and to drain."""
    lasts = [1_600_000 if stage == slow else 1_000_000 for stage in range(8)]
    told = found_in(*(job.built for job in skewed(pipeline(lasts, 24))))
    assert next(iter(told)) == "pipeline.stage-imbalance"
    finding = told["pipeline.stage-imbalance"]
    assert finding.scope.ranks == [slow]
    is_worth(finding, (24 * 1.6 + 7) / (31 * 1.075))
