"""Steps that were not recorded are shorter on the host alone: gains are those of them."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import case_of, found_in, run, told_of
from tests.diagnosis.jobs import Job, is_worth

from whystall.analysis.run_results import RunSummary

CALLS: Final = 100
CALL_NS: Final = 10_000
"""What the host takes for each operator of a recorded step."""


def training(kernel_ns: int, python_ns: int = 0) -> Job:
    """Ten steps of a hundred operators with a kernel each, and some Python."""
    job = Job()
    for _ in job.steps(10):
        job.python(python_ns)
        for _ in range(CALLS):
            job.operator("aten::mm", "gemm", kernel_ns)
        job.wait()
    return job


def steps_of(median_ns: int) -> RunSummary:
    even: dict[str, Any] = {"p10_ns": median_ns, "p90_ns": median_ns, "p99_ns": median_ns, "max_ns": median_ns}
    return run(median_ns=median_ns, total_ns=100 * median_ns, durations_ns=[median_ns] * 100, **even)


def test_a_device_that_only_the_profiler_kept_waiting_waits_for_nothing() -> None:
    job = training(kernel_ns=8_000)
    assert told_of(job.built)["host.launch-bound"].title.startswith("Perhaps: ")
    # Without it the kernels follow each other: 8 us and the gap of 1 us between two of them.
    assert "host.launch-bound" not in found_in(job.built, runs=[steps_of(CALLS * 9_000)])


def test_a_device_that_waits_without_it_as_well_gains_what_those_steps_would() -> None:
    job = training(kernel_ns=2_000)
    unrecorded = CALLS * 6_000
    finding = found_in(job.built, runs=[steps_of(unrecorded)])["host.launch-bound"]
    assert finding.gain is not None
    assert finding.gain.step_ns == pytest.approx(unrecorded, rel=0.03)
    # All at once the kernels take 2 us each, and the gap that a graph leaves between two.
    assert CALLS * 6 / (CALLS * 4) < finding.gain.expected < CALLS * 6 / (CALLS * 2)


def test_long_python_was_no_longer_for_being_recorded() -> None:
    python_ns = 2_000_000
    job = training(kernel_ns=2_000, python_ns=python_ns)
    unrecorded = CALLS * 6_000 + python_ns
    finding = found_in(job.built, runs=[steps_of(unrecorded)])["host.python"]
    is_worth(finding, unrecorded / (unrecorded - python_ns))


def test_recording_costs_no_more_than_its_events_can() -> None:
    """Of a step of one operator and a launch a profiler makes no ten milliseconds: steps differ for other reasons."""
    job = Job()
    for _ in job.steps(10):
        job.operator("aten::mm", "gemm", 2_000)
        job.python(10_000_000)
        job.wait()
    case = case_of(job.built, runs=[steps_of(1_000_000)])
    assert case.lengthening is not None
    assert 1 < case.lengthening < 1.01


def test_what_was_longer_for_other_reasons_is_not_taken_from_long_python() -> None:
    """Recorded kernels of 30 us and usual ones of 20: no profiler made three milliseconds of Python of two."""
    python_ns = 3_000_000
    job = training(kernel_ns=30_000, python_ns=python_ns)
    finding = found_in(job.built, runs=[steps_of(CALLS * 21_000 + python_ns)])["host.python"]
    assert finding.gain is not None
    recorded = CALLS * 31_000 + python_ns
    assert finding.gain.floor <= recorded / (CALLS * 31_000) <= finding.gain.ceiling


def test_the_overhead_is_told_with_what_was_done_about_it() -> None:
    job = training(kernel_ns=4_000)
    told = told_of(job.built, runs=[steps_of(CALLS * 6_000)])
    assert "gains are those of steps that are not recorded" in told["capture.recording-overhead"].title
