"""communication.small-messages: many collectives that cost their latency fire it, on any library;
few and large ones do not.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

import pytest
from tests.diagnosis.cases import case_of, found_in, found_in_runs, line, run, told_of
from tests.diagnosis.jobs import GAP_NS, Job, is_worth, meet, message, together

from whystall.analysis.run_results import RunSummary
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.rules.communication import small_messages
from whystall.testing import TraceBuilder, trace

COMPUTE_NS: Final = 1_000_000
LATENCY_NS: Final = 25_000
MANY: Final = 40
NCCL: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def training(
    count: int = MANY,
    *,
    size: int = 64 << 10,
    lasts: int = LATENCY_NS,
    kernel: str = NCCL,
    api: str = "cuda",
    collective: str = "allreduce",
) -> Job:
    """Eight steps of a product of 1 ms and as many collectives."""
    job = Job(api=api)
    for _ in job.steps(8):
        job.launch("gemm", COMPUTE_NS)
        for _ in range(count):
            job.launch(kernel, lasts, **message(collective, size))
        job.wait()
    return job


@pytest.mark.parametrize(
    ("kernel", "api", "collective"),
    [
        (NCCL, "cuda", "allreduce"),
        (NCCL, "hip", "allreduce"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "hip", "allreduce_coalesced"),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)", "cuda", "allreduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "cuda", "_reduce_scatter_base"),
    ],
)
def test_forty_small_ones_are_worth_all_latencies_but_one(kernel: str, api: str, collective: str) -> None:
    """Together they are 2.5 MiB, one bucket (reference: causes.md, (n - n') times the latency)."""
    job = training(kernel=kernel, api=api, collective=collective)
    finding = found_in(job.built)["communication.small-messages"]
    is_worth(finding, job.step_ns / (job.step_ns - (MANY - 1) * (LATENCY_NS + GAP_NS)))
    assert finding.evidence[0].value == MANY


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(training(6), id="few"),
        pytest.param(training(10, size=64 << 20, lasts=2_000_000), id="large"),
        pytest.param(training(10, lasts=500), id="next to no latency"),
        pytest.param(training(0), id="none"),
        pytest.param(training(kernel="ncclDevKernel_SendRecv", collective="send"), id="to one rank"),
        pytest.param(training(kernel="ncclDevKernel_SendRecv", collective="all_to_allv"), id="between experts"),
    ],
)
def test_few_large_and_direct_messages_are_none(job: Job) -> None:
    assert "communication.small-messages" not in found_in(job.built)


def test_small_kernels_that_are_no_collectives_are_another_cause() -> None:
    job = Job()
    for _ in job.steps(8):
        for _ in range(MANY):
            job.launch("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", LATENCY_NS)
        job.wait()
    assert "communication.small-messages" not in told_of(job.built)


def test_what_is_more_than_a_bucket_stays_in_several() -> None:
    """120 messages of 512 KiB are 60 MiB: three buckets of 25 MiB."""
    job = training(120, size=512 << 10)
    finding = found_in(job.built)["communication.small-messages"]
    is_worth(finding, job.step_ns / (job.step_ns - (120 - 3) * (LATENCY_NS + GAP_NS)), within=0.01)


def test_a_dozen_is_worth_joining() -> None:
    job = training(12)
    finding = found_in(job.built)["communication.small-messages"]
    is_worth(finding, job.step_ns / (job.step_ns - 11 * (LATENCY_NS + GAP_NS)))


@pytest.mark.parametrize(("long", "joined"), [(12, MANY - 12), (2, MANY)])
def test_without_sizes_those_that_take_long_are_small_only_where_they_are_few(long: int, joined: int) -> None:
    """A few of forty were held up by another rank; a third of them move more."""
    job = Job()
    for _ in job.steps(8):
        job.launch("gemm", COMPUTE_NS)
        for number in range(MANY):
            job.launch(NCCL, 400_000 if number < long else LATENCY_NS)
        job.wait()
    assert found_in(job.built)["communication.small-messages"].evidence[0].value == joined


def by_gloo(*marks: str) -> TraceBuilder:
    """Eight steps, four tenths of which go into forty messages."""
    built = trace()
    for number in range(8):
        at = number * 10_000_000
        built.step(number, at=at, lasts=10_000_000)
        for mark in marks:
            built.annotation(mark, at=at, lasts=6_000_000)
        built.operator("aten::mm", at=at, lasts=6_000_000)
        for place in range(MANY):
            begin = at + 6_000_000 + place * 100_000
            built.operator("gloo:all_reduce", at=begin, lasts=100_000, **message("all_reduce", 64 << 10))
    return built


@pytest.mark.parametrize(
    ("marks", "patch"), [((), "torch.cat([p.grad.flatten()"), (("DistributedDataParallel.forward",), "bucket_cap_mb")]
)
def test_a_job_with_a_loop_of_its_own_is_told_how_to_send_one_tensor(marks: tuple[str, ...], patch: str) -> None:
    looks = [line(0.3, leaf="torch.distributed.distributed_c10d:all_reduce"), line(0.7, part="forward")]
    built = by_gloo(*marks)
    found = {one.id: one for one in diagnose(case_of(built, runs=[run(places=looks)]), RULES).findings}
    remedy = found["communication.small-messages"].remedy
    assert remedy is not None
    assert patch in (remedy.patch or "")


def test_on_a_cpu_samples_of_the_whole_run_say_what_it_is_worth() -> None:
    """Forty messages by gloo take four tenths of the recorded steps, and three of the run's."""
    built = by_gloo()
    looks = [line(0.3, leaf="torch.distributed.distributed_c10d:all_reduce"), line(0.7, part="forward")]
    found = {one.id: one for one in diagnose(case_of(built, runs=[run(places=looks)]), RULES).findings}
    gain = found["communication.small-messages"].gain
    assert gain is not None
    saved = 0.3 * (1 - 1 / MANY)
    assert gain.expected == pytest.approx(1 / (1 - saved), rel=0.01)
    # At the least four fifths of it go away; at most a fifth of what is left goes away as well.
    assert gain.floor == pytest.approx(1 / (1 - 0.8 * saved), rel=0.05)
    assert gain.ceiling == pytest.approx(1 / ((1 - saved) * 0.8), rel=0.15)
    assert [(place.file, place.line) for place in found["communication.small-messages"].code] == [("train.py", 7)]


def test_what_samples_see_in_a_large_one_is_no_latency() -> None:
    """Forty small messages of 50 us and one of 64 MiB that takes as long as all of them: half of what samples see."""
    built = trace()
    for number in range(8):
        at = number * 10_000_000
        built.step(number, at=at, lasts=10_000_000)
        built.operator("aten::mm", at=at, lasts=6_000_000)
        for place in range(MANY):
            begin = at + 6_000_000 + place * 50_000
            built.operator("gloo:all_reduce", at=begin, lasts=50_000, **message("all_reduce", 64 << 10))
        built.operator("gloo:all_reduce", at=at + 8_000_000, lasts=2_000_000, **message("all_reduce", 64 << 20))
    looks = [line(0.3, leaf="torch.distributed.distributed_c10d:all_reduce"), line(0.7, part="forward")]
    found = {one.id: one for one in diagnose(case_of(built, runs=[run(places=looks)]), RULES).findings}
    gain = found["communication.small-messages"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(1 / (1 - 0.15 * (1 - 1 / MANY)), rel=0.01)


def exchanging(share: float, text: str, rank: int) -> RunSummary:
    """A rank that is found at a line in a share of the looks, and in its backward pass else."""
    places = [
        line(share, text, leaf="torch.distributed.distributed_c10d:all_gather"),
        line(1 - share, part="backward", at=9),
    ]
    return run(rank=rank, places=places, shares={"other": share, "backward": 1 - share})


@pytest.mark.parametrize(
    ("shares", "text", "fires"),
    [
        ((0.3, 0.3), "dist.all_gather_object(blocks, mine)", True),
        ((0.3, 0.3), "dist.all_gather(blocks, mine)", False),
        ((0.3, 0.01), "dist.all_gather_object(blocks, mine)", False),  # one waits for the other
    ],
)
def test_objects_that_are_exchanged_are_worth_a_part_of_their_time(
    shares: tuple[float, float], text: str, *, fires: bool
) -> None:
    found = found_in_runs(*(exchanging(share, text, rank) for rank, share in enumerate(shares)))
    assert ("communication.small-messages" in found) is fires
    if fires:
        finding = found["communication.small-messages"]
        assert finding.scope.ranks == [0, 1]
        assert finding.gain is not None
        assert 1 < finding.gain.floor < finding.gain.expected < 1 / (1 - 0.3)
        assert [one.line for one in finding.code] == [7]
        assert finding.remedy is not None
        assert "dist.all_gather(blocks, mine)" in (finding.remedy.patch or "")


def test_at_most_all_that_a_rank_spends_on_objects_goes_away() -> None:
    text = "dist.scatter_object_list(mine, parts)"
    gain = found_in_runs(exchanging(0.2, text, 0), exchanging(0.35, text, 1))["communication.small-messages"].gain
    assert gain is not None
    assert 1 / (1 - 0.35) <= gain.ceiling < 1 / (1 - 0.35) * 1.25


@pytest.mark.parametrize(("runs", "left"), [(1, 1), (4, 4), (40, 1)])
def test_pieces_are_joined_as_far_as_nothing_is_computed_between(runs: int, left: int) -> None:
    """Forty messages of 50 us in a row, in four rows between which 2 ms are computed, and one by one in such passes."""
    built = trace()
    for number in range(8):
        at = begin = number * 200_000_000
        for _ in range(runs):
            built.operator("aten::mm", at=at, lasts=2_000_000)
            at += 2_000_000
            for _ in range(MANY // runs):
                built.operator("gloo:all_reduce", at=at, lasts=50_000, **message("all_reduce", 64 << 10))
                at += 50_000
        built.step(number, at=begin, lasts=at - begin)
    looks = [line(0.3, leaf="torch.distributed.distributed_c10d:all_reduce"), line(0.7, part="forward")]
    found = {one.id: one for one in diagnose(case_of(built, runs=[run(places=looks)]), RULES).findings}
    gain = found["communication.small-messages"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(1 / (1 - 0.3 * (1 - left / MANY)), rel=0.01)


LAYERS: Final = 12
GATHER: Final = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def normed(*, synced: bool, named: str = "SyncBatchNorm", frame: str = "") -> list[Job]:
    """Two ranks whose layers exchange small statistics, wait for the host's look at them, and go on."""
    jobs = [Job(), Job()]
    for _ in together(jobs, 8):
        for _ in range(LAYERS):
            for job in jobs:
                job.operator("aten::cudnn_convolution", "sm80_xmma_fprop_implicit_gemm", 150_000)
            begins = [job.at for job in jobs]
            with ExitStack() as around:
                for job in jobs:
                    around.enter_context(job.inside(named))
                    job.operator("aten::batch_norm_stats", "batch_norm_collect_statistics", 5_000)
                if synced:
                    exchange(jobs)
                for job in jobs:
                    job.operator("aten::batch_norm_elemt", "batch_norm_transform_input", 10_000)
            for job, begin in zip(jobs, begins, strict=True):
                if frame:
                    job.built.python(frame, at=begin - 10, lasts=job.at - begin + 20)
        for job in jobs:
            job.wait()
    return jobs


def exchange(jobs: list[Job]) -> None:
    for job in jobs:
        job.operator("aten::cat", "at::native::CatArrayBatchedCopy", 2_000)
    with ExitStack() as around:
        for job in jobs:
            around.enter_context(job.inside("c10d::_allgather_base_"))
        meet(jobs, GATHER, LATENCY_NS, **message("_allgather_base", 2_048))
    for job in jobs:
        with job.inside("aten::index"), job.inside("aten::nonzero"):
            job.launch("Memcpy DtoH (Device -> Pageable)", 2_000, call="MemcpyAsync", category="gpu_memcpy")
            job.call("StreamSynchronize", job.busy_until[7] + 2_000 - job.at)


@pytest.mark.parametrize(
    ("named", "frame"),
    [
        ("SyncBatchNorm", ""),
        ("SyncBatchNorm", "nn.Module: SyncBatchNorm_3"),
        ("SyncBatchnormFunction", "apex/parallel/optimized_sync_batchnorm.py(85): forward"),
    ],
)
def test_a_norm_over_ranks_is_worth_its_exchange_and_its_waits(named: str, frame: str) -> None:
    slow, repaired = normed(synced=True, named=named, frame=frame), normed(synced=False, named=named)
    found = found_in(*(job.built for job in slow))
    finding = found["communication.small-messages"]
    is_worth(finding, slow[0].step_ns / repaired[0].step_ns, within=0.1)
    assert finding.remedy == small_messages.CAUSE.remedies["norms"]
    assert finding.evidence[0].value == LAYERS


def test_other_small_collectives_of_layers_are_no_norms() -> None:
    finding = found_in(*(job.built for job in normed(synced=True, named="RowParallelLinear")))
    assert all(one.remedy != small_messages.CAUSE.remedies["norms"] for one in finding.values())


def test_metrics_are_exchanged_seldom() -> None:
    job = Job()
    for _ in job.steps(8):
        job.launch("gemm", COMPUTE_NS)
        begin = job.at
        for _ in range(MANY):
            with job.inside("c10d::allreduce_"):
                job.launch(NCCL, LATENCY_NS, **message("allreduce", 512))
        job.built.python("torchmetrics/metric.py(500): sync", at=begin - 10, lasts=job.at - begin + 20)
        job.wait()
    finding = found_in(job.built)["communication.small-messages"]
    assert finding.remedy == small_messages.CAUSE.remedies["metrics"]
