"""communication.buffer-broadcast: forward passes that begin with sending buffers fire it; other broadcasts do not."""

from __future__ import annotations

from typing import Final

import pytest
from tests.conftest import RealTraces
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth, meet, message, together

from whystall.diagnosis.finding import Finding
from whystall.testing import TraceBuilder, trace

CAUSE: Final = "communication.buffer-broadcast"
BUFFERS: Final = 60
NCCL: Final = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FETCH: Final = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
OLD: Final = "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)"


def _sends(jobs: list[Job], kernel: str, buffers: int, *, old: bool, fetch_ns: int, batch_ns: int) -> None:
    for job in jobs:
        job.operator("aten::cat" if old else "aten::flatten_dense_tensors", "CatArrayBatchedCopy", 3_000)
    begins = [job.at for job in jobs]
    meet(jobs, kernel, 20_000, **message("broadcast", buffers * 512))
    for job, begin in zip(jobs, begins, strict=True):
        job.built.operator("c10d::broadcast_", at=begin, lasts=job.at - begin)
        job.operator("aten::narrow" if old else "aten::unflatten_dense_tensors")
        if fetch_ns:
            job.built.annotation(FETCH, at=job.at, lasts=fetch_ns)
            job.at += fetch_ns
        if batch_ns:
            job.operator("aten::copy_", "Memcpy HtoD (Pageable -> Device)", batch_ns)
        for _ in range(buffers):
            job.operator("aten::copy_", "Memcpy DtoD", 2_000)


def ranks(
    *,
    buffers: int = BUFFERS,
    kernel: str = NCCL,
    api: str = "cuda",
    old: bool = False,
    mark: str = "DistributedDataParallel.forward",
    before: str = "",
    products: int = 40,
    fetch_ns: int = 0,
    batch_ns: int = 0,
) -> tuple[list[TraceBuilder], float]:
    """Two ranks whose forward passes send buffers, compute, and whose backward passes reduce gradients."""
    jobs = [Job(api=api), Job(api=api)]
    for _ in together(jobs, 8):
        starts = [job.at for job in jobs]
        if before:
            for job in jobs:
                job.operator(before, "gemm", 10_000)
        if buffers:
            _sends(jobs, kernel, buffers, old=old, fetch_ns=fetch_ns, batch_ns=batch_ns)
        for job, start in zip(jobs, starts, strict=True):
            for _ in range(products):
                job.operator("aten::mm", "gemm", 8_000)
            job.built.annotation(mark, at=start, lasts=job.at - start)
        meet(jobs, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 50_000, **message("allreduce", 1 << 22))
        for job in jobs:
            job.wait()
    return [job.built for job in jobs], jobs[0].step_ns


@pytest.mark.parametrize(("kernel", "api", "old"), [(NCCL, "cuda", False), (OLD, "cuda", True), (NCCL, "hip", False)])
def test_buffers_that_are_sent_before_each_forward_pass(kernel: str, api: str, *, old: bool) -> None:
    built, sending = ranks(kernel=kernel, api=api, old=old)
    finding = found_in(*built)[CAUSE]
    is_worth(finding, sending / ranks(buffers=0, api=api)[1])
    assert finding.evidence[0].value == 1
    assert finding.scope.ranks == [0, 1]
    assert finding.remedy is not None
    assert finding.remedy.patch == "DistributedDataParallel(model, broadcast_buffers=False)"


def test_what_lasts_long_between_the_buffers_is_something_else() -> None:
    built, sending = ranks(fetch_ns=2_000_000)
    found = found_in(*built)
    is_worth(found["input.synchronous-loader"], sending / (sending - 2_000_000))
    _is_worth_no_more(found, sending)


def test_a_batch_that_is_copied_among_the_buffers_is_none() -> None:
    built, sending = ranks(batch_ns=2_000_000)
    _is_worth_no_more(found_in(*built), sending)


def _is_worth_no_more(found: dict[str, Finding], step_ns: float) -> None:
    """No more than buffers take in steps that are so long."""
    gain = found[CAUSE].gain if CAUSE in found else None
    assert gain is None or gain.expected <= step_ns / (step_ns - (ranks()[1] - ranks(buffers=0)[1])) * 1.02


def on_hosts(wait_ns: int, sent_ns: int) -> list[TraceBuilder]:
    """Two ranks over gloo whose forward passes wait for a buffer that another thread of theirs sends meanwhile."""
    out = []
    for _ in range(2):
        built, at = trace(), 0
        for number in range(8):
            begin = at
            built.operator("aten::flatten_dense_tensors", at=at + 10_000, lasts=10_000)
            built.operator("c10d::broadcast_", at=at + 20_000, lasts=50_000)
            built.annotation("gloo:broadcast", at=at + 170_000, lasts=sent_ns, thread=7)
            at += 70_000 + wait_ns
            built.operator("aten::unflatten_dense_tensors", at=at, lasts=10_000)
            built.operator("aten::copy_", at=at + 10_000, lasts=10_000)
            built.operator("aten::mm", at=at + 20_000, lasts=10_000_000)
            at += 10_020_000
            built.annotation("DistributedDataParallel.forward", at=begin, lasts=at - begin)
            built.operator("gloo:all_reduce", at=at, lasts=2_000_000, **message("all_reduce", 1 << 20))
            at += 2_000_000
            built.step(number, at=begin, lasts=at - begin)
        out.append(built)
    return out


def test_a_library_on_the_host_sends_buffers_on_a_thread_of_its_own() -> None:
    """The thread that steps waits for it between two calls, somewhat longer than it takes."""
    finding = found_in(*on_hosts(5_000_000, 4_500_000))[CAUSE]
    assert finding.evidence[0].value == 1
    whole = 70_000 + 5_000_000 + 10_020_000 + 2_000_000
    is_worth(finding, whole / (whole - 5_000_000), within=0.1)


def test_what_is_mostly_something_else_is_no_wait_for_it() -> None:
    found = found_in(*on_hosts(5_000_000, 500_000))
    assert CAUSE not in found or (gain := found[CAUSE].gain) is None or gain.expected < 1.08


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(ranks(buffers=0)[0], id="none"),
        pytest.param(ranks(buffers=1, products=800)[0], id="one-small-buffer"),
        pytest.param(ranks(before="aten::embedding")[0], id="the-models-own-broadcast"),
        pytest.param(ranks(mark="MyParallel.forward")[0], id="another-wrapper"),
    ],
)
def test_other_broadcasts(built: list[TraceBuilder]) -> None:
    assert CAUSE not in found_in(*built)


def test_one_rank_alone_shows_it() -> None:
    """What the host does for it is seen on each rank, whoever else was recorded."""
    built, sending = ranks()
    is_worth(found_in(built[0])[CAUSE], sending / ranks(buffers=0)[1], within=0.1)


@pytest.mark.real_traces
@pytest.mark.parametrize(("name", "fires"), [("ddp-2rank-a100.json.gz", True), ("cnn-v100-ns.json.gz", False)])
def test_recorded_jobs(name: str, *, fires: bool, real_traces: RealTraces) -> None:
    """The one spends 37 of 222 ms on it; the other's device is busy meanwhile."""
    told = {finding.id for finding in real_traces.report(name).findings if finding.severity != "info"}
    assert (CAUSE in told) == fires
