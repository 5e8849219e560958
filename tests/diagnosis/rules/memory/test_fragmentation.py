"""memory.fragmentation: much more reserved than was ever allocated is told, from events and from samples;
it costs no time.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import run as a_run
from tests.diagnosis.cases import told_of
from tests.diagnosis.jobs import Job

from whystall.analysis.run_results import AllocatorRun
from whystall.diagnosis.case import Case
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.rules import RULES

UNIT: Final = 200 << 20  # sizes below are in units of 200 MiB


def training(allocated: int, reserved: int, *, api: str = "cuda") -> Job:
    """Twelve steps of two products, and an event of the allocator in the first."""
    job = Job(api=api)
    for number in job.steps(12):
        if number == 0:
            job.built.memory(at=job.at, size=UNIT, allocated=allocated * UNIT, reserved=reserved * UNIT)
        for _ in range(2):
            job.operator("aten::mm", "gemm", 1_000_000)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("allocated", "reserved", "api", "told"),
    [
        (20, 40, "cuda", True),
        (20, 40, "hip", True),  # HIP says CUDA of its devices
        (36, 40, "cuda", False),
        (31, 40, "cuda", False),  # 1.29 times
        (4, 8, "cuda", True),  # 1.6 GiB
        (1, 4, "cuda", False),  # too small to matter
    ],
)
def test_reserved_memory_that_is_never_in_use_is_told_without_a_gain(
    allocated: int, reserved: int, api: str, *, told: bool
) -> None:
    finding = told_of(training(allocated, reserved, api=api).built).get("memory.fragmentation")
    assert (finding is not None) is told
    if finding is not None:
        assert (finding.severity, finding.gain) == ("info", None)
        share = next(one.value for one in finding.evidence if one.unit == "share")
        assert share == pytest.approx(1 - allocated / reserved)
        bytes_ = {one.what: one.value for one in finding.evidence if one.unit == "bytes"}
        assert bytes_["reserved and never in use"] == (reserved - allocated) * UNIT


def test_the_peaks_of_both_count_and_not_a_moment_after_a_batch_was_freed() -> None:
    job = training(39, 40)
    job.built.memory(at=1_000_000, size=-38 * UNIT, allocated=UNIT, reserved=40 * UNIT)
    assert "memory.fragmentation" not in told_of(job.built)


@pytest.mark.parametrize(("reserved", "told"), [(79, True), (65, False)])
def test_what_an_allocator_tells_of_a_run(reserved: int, *, told: bool) -> None:
    seen = AllocatorRun(
        device=0, peak_allocated_bytes=60 << 30, peak_reserved_bytes=reserved << 30, retries=0, steps=50
    )
    found = diagnose(Case(runs=(a_run(allocators=[seen]),)), RULES).findings
    assert [(one.id, one.severity) for one in found] == ([("memory.fragmentation", "info")] if told else [])
