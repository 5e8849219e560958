"""memory.allocator-retry: bursts of frees and allocations in steps, or retries that were counted, fire it."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in, found_in_runs, run, told_of
from tests.diagnosis.jobs import Job, is_worth

from whystall.analysis.run_results import AllocatorRun

PRODUCT_NS: Final = 2_000_000
BURST: Final = 4
CALL_NS: Final = 100_000


def tight(
    frees: str, allocates: str, *, api: str = "cuda", burst: int = BURST, steps: tuple[int, ...] = tuple(range(8))
) -> Job:
    """Eight steps of two products of 2 ms; in some of them memory is freed and asked for between these."""
    job = Job(api=api)
    for number in job.steps(8):
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        if number in steps:
            until = job.busy_until[7]
            with job.inside("aten::empty"):
                for place in range(burst):
                    # The first call waits until the device has done what it was given.
                    job.call(frees, CALL_NS + (max(until - job.at, 0) if place == 0 else 0))
                for _ in range(burst):
                    job.call(allocates, CALL_NS)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("api", "frees", "allocates"), [("cuda", "Free", "Malloc"), ("hip", "Free", "Malloc"), ("cu", "MemUnmap", "MemMap")]
)
def test_bursts_are_worth_their_calls(api: str, frees: str, allocates: str) -> None:
    """Without them the second product follows the first at once."""
    job = tight(frees, allocates, api=api)
    finding = found_in(job.built)["memory.allocator-retry"]
    is_worth(finding, job.step_ns / (job.step_ns - 2 * BURST * CALL_NS))


@pytest.mark.parametrize("steps", [(), (0,)])
def test_an_allocator_that_has_what_it_needs_does_neither(steps: tuple[int, ...]) -> None:
    assert "memory.allocator-retry" not in told_of(tight("Free", "Malloc", steps=steps).built)


def test_allocations_without_frees_are_those_of_changing_sizes() -> None:
    found = found_in(tight("Malloc", "Malloc").built)
    assert "memory.allocator-retry" not in found
    assert "host.allocator" in found


def test_what_is_small_beside_the_step_does_not_fire() -> None:
    assert "memory.allocator-retry" not in found_in(tight("MemUnmap", "MemMap", api="cu", burst=0).built)


@pytest.mark.parametrize(("retries", "fires"), [(4, True), (0, False)])
def test_retries_that_the_allocator_counts(retries: int, *, fires: bool) -> None:
    counted = AllocatorRun(
        device=0, peak_allocated_bytes=60 << 30, peak_reserved_bytes=65 << 30, retries=retries, steps=50
    )
    found = found_in_runs(run(allocators=[counted]))
    assert ("memory.allocator-retry" in found) is fires
    if fires:
        finding = found["memory.allocator-retry"]
        assert (finding.severity, finding.evidence[0].value, finding.gain) == ("minor", 4, None)


def emptying(frame: str | None) -> Job:
    """Eight steps that give memory back within a Python frame, and ask for it again."""
    job = Job()
    for _ in job.steps(8):
        begin = job.at
        for _ in range(4):
            job.call("Free", 1_000_000)
        if frame is not None:
            job.built.python(frame, at=begin - 500, lasts=job.at - begin + 1_000)
        for _ in range(4):
            job.call("Malloc", 200_000)
        job.operator("aten::mm", "gemm", 2_000_000)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("frame", "explicit"),
    [
        ("torch/cuda/memory.py(218): empty_cache", True),
        ("<built-in method _cuda_emptyCache of module>", True),
        ("train.py(88): main", False),
        (None, False),
    ],
)
def test_memory_that_the_program_itself_gives_back_is_no_matter_of_settings(
    frame: str | None, *, explicit: bool
) -> None:
    finding = found_in(emptying(frame).built)["memory.allocator-retry"]
    assert finding.remedy is not None
    assert ("empty_cache" in (finding.remedy.patch or "")) is explicit
    assert ("expandable_segments" in (finding.remedy.patch or "")) is not explicit
