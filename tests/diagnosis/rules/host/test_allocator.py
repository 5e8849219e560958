"""host.allocator: calls that allocate in every step fire it, by any runtime's name; those of the first step do not."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in, run, told_of
from tests.diagnosis.jobs import Job, is_worth

from whystall.analysis.run_results import AllocatorRun

PRODUCT_NS: Final = 2_000_000
CALL_NS: Final = 1_000_000


def allocating(call: str, lasts: int, *, api: str = "cuda", only_first: bool = False, queued: int = 0) -> Job:
    """Eight steps of a product of 2 ms, before which memory is asked for, and of products that were launched before."""
    job = Job(api=api)
    for number in job.steps(8):
        for _ in range(queued):
            job.operator("aten::mm", "gemm", PRODUCT_NS)
        with job.inside("aten::empty"):
            if number == 0 or not only_first:
                job.call(call, lasts)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("api", "call"),
    [
        ("cuda", "Malloc"),
        ("cuda", "HostAlloc"),
        ("cuda", "MallocHost"),
        ("cu", "MemCreate"),  # of expandable segments
        ("cu", "MemMap"),
        ("hip", "Malloc"),
        ("hip", "HostMalloc"),  # what HIP calls pinned memory
        ("hip", "ExtMallocWithFlags"),
    ],
)
def test_allocating_in_every_step_is_worth_the_calls(api: str, call: str) -> None:
    job = allocating(call, CALL_NS, api=api)
    finding = found_in(job.built)["host.allocator"]
    is_worth(finding, job.step_ns / (job.step_ns - CALL_NS))
    assert finding.evidence[1].value == pytest.approx(1, abs=0.2)


def test_what_the_first_step_allocates_is_kept() -> None:
    assert "host.allocator" not in told_of(allocating("Malloc", CALL_NS, only_first=True).built)


@pytest.mark.parametrize(
    "call", ["PointerGetAttributes", "MemcpyAsync", "StreamIsCapturing", "OccupancyMaxActiveBlocks"]
)
def test_calls_that_allocate_nothing_are_none(call: str) -> None:
    assert "host.allocator" not in told_of(allocating(call, CALL_NS).built)


def test_short_calls_are_none() -> None:
    assert "host.allocator" not in found_in(allocating("Malloc", 20_000).built)


def test_calls_behind_queued_work_are_told_and_left() -> None:
    told = told_of(allocating("Malloc", CALL_NS, queued=1).built)["host.allocator"]
    assert told.severity == "info"
    assert "leave it" in told.title


def giving_back() -> Job:
    """Eight steps that free memory and ask for it again."""
    job = Job()
    for _ in job.steps(8):
        with job.inside("aten::empty"):
            job.call("Free", CALL_NS // 2)
            job.call("Malloc", CALL_NS // 2)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


def test_an_allocator_that_frees_as_well_is_short_of_memory() -> None:
    found = found_in(giving_back().built)
    assert "host.allocator" not in found
    assert "memory.allocator-retry" in found


@pytest.mark.parametrize(("retries", "cause"), [(0, "host.allocator"), (3, "memory.allocator-retry")])
def test_an_allocator_that_never_had_to_is_made_to_give_memory_back(retries: int, cause: str) -> None:
    job = giving_back()
    allocator = AllocatorRun(
        device=0, peak_allocated_bytes=1 << 30, peak_reserved_bytes=1 << 31, retries=retries, steps=90
    )
    measured = run(median_ns=round(job.step_ns), total_ns=round(100 * job.step_ns), allocators=[allocator])
    found = found_in(job.built, runs=[measured])
    assert set(found) & {"host.allocator", "memory.allocator-retry"} == {cause}
    is_worth(found[cause], job.step_ns / (job.step_ns - CALL_NS))
    remedy = found[cause].remedy
    assert remedy is not None
    assert ("empty_cache" in remedy.text) == (retries == 0)
