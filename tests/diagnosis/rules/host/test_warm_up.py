"""host.warm-up: loading code in recorded steps fires it, in any library's calls; loading before them does not."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import Job

import whystall

STEP_NS: Final = 2_000_000


def training(call: str, in_steps: tuple[int, ...], *, lasts: int = STEP_NS, api: str = "cu") -> Job:
    """Twelve steps of two products that the host waits for; in some of them a call before."""
    job = Job()
    for number in job.steps(12):
        if number in in_steps:
            job.built.runtime(f"{api}{call}", at=job.at, lasts=lasts)
            job.python(lasts)
        for _ in range(2):
            job.operator("aten::mm", "gemm", STEP_NS // 2)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("api", "call"),
    [
        ("cu", "ModuleLoadData"),
        ("cu", "ModuleLoadDataEx"),
        ("cu", "LibraryLoadData"),  # CUDA 12
        ("cuda", "LibraryLoadData"),
        ("hip", "ModuleLoadData"),
        ("hip", "ModuleLoad"),
        ("nvrtc", "CompileProgram"),
        ("hiprtc", "CompileProgram"),
    ],
)
def test_loading_in_three_of_ten_steps_is_worth_three_tenths(api: str, call: str) -> None:
    finding = found_in(training(call, (3, 5, 7), api=api).built)["host.warm-up"]
    assert finding.severity != "info"
    assert finding.gain is not None
    assert finding.gain.floor <= 1 + 3 / 10 <= finding.gain.ceiling


@pytest.mark.parametrize(
    ("call", "in_steps", "lasts"),
    [
        ("ModuleLoadData", (), 0),
        ("ModuleLoadData", (0,), STEP_NS),  # before the steps that count
        ("ModuleLoadData", (3, 5, 7), 50_000),  # 0.7 % of the steps
        ("ModuleGetFunction", (3, 5, 7), STEP_NS),  # looks up what is loaded
        ("LaunchKernel", (3, 5, 7), STEP_NS),
    ],
)
def test_loading_before_the_window_and_other_calls_are_none(call: str, in_steps: tuple[int, ...], lasts: int) -> None:
    assert "host.warm-up" not in found_in(training(call, in_steps, lasts=lasts).built)


def test_first_launches_before_the_steps_that_count_are_told_and_no_loss() -> None:
    """Three launches of 14 ms in the first of twelve steps of 6 ms; no later step has any."""
    kernels = ("gemm", "softmax", "norm")
    job = Job()
    for number in job.steps(12):
        for kernel in kernels:
            job.operator("aten::mm", kernel, STEP_NS)
            if number == 0:
                job.call("LaunchKernel", 14_000_000)
        job.wait()
    told = told_of(job.built)["host.warm-up"]
    assert told.severity == "info"
    assert told.gain is None
    verdict = whystall.analyze(job.built.load()).verdict
    assert verdict.summary.startswith("Nothing was found")


def test_where_a_recording_is_one_of_a_start_the_first_call_is_marked() -> None:
    """No steps are marked, and a first launch is 42 of 66 ms."""
    job = Job()
    job.operator("aten::mm", "gemm", STEP_NS)
    job.call("LaunchKernel", 42_000_000)
    for _ in range(11):
        job.operator("aten::mm", "gemm", STEP_NS)
    job.wait()
    told = found_in(job.built)["host.warm-up"]
    assert told.severity == "minor"
    assert told.in_step is not None
    assert sum(length for _, length in told.in_step.marks) == pytest.approx(42_000_000, rel=0.01)


@pytest.mark.parametrize("api", ["cuda", "hip"])
def test_a_recording_of_a_graph_being_captured_is_one_of_a_start(api: str) -> None:
    """400 calls in Python between begin and end of the capture, none of which runs anything: nothing of it recurs."""
    job = Job(api=api)
    job.operator("aten::zeros", "fill", 20_000)
    job.call("StreamBeginCapture", 3_000)
    for _ in range(400):
        job.python(150_000)
        job.built.operator("aten::mm", at=job.at, lasts=30_000)
        job.built.runtime(f"{api}LaunchKernel", at=job.at + 5_000, lasts=5_000)
        job.python(30_000)
    job.call("StreamEndCapture", 5_000)
    job.call("GraphInstantiate", 1_500_000)
    job.operator("aten::zeros", "fill", 20_000)
    found = found_in(job.built)
    assert set(found) == {"host.warm-up"}
    assert "capture of graphs" in found["host.warm-up"].title


def test_graphs_that_are_captured_in_every_step_are_no_start() -> None:
    job = Job()
    for _ in job.steps(8):
        job.call("StreamBeginCapture", 3_000)
        job.python(2_000_000)
        job.call("StreamEndCapture", 5_000)
        job.operator("aten::mm", "gemm", 2_000_000)
        job.wait()
    assert "host.warm-up" not in found_in(job.built)


@pytest.mark.parametrize("before", [0, 3])
def test_a_call_that_took_long_once_counts_for_no_recording(before: int) -> None:
    """7 ms of 12, once among 300 calls of its name, be it the first of them or not."""
    job = Job()
    for number in range(300):
        job.call("OccupancyMaxActiveBlocks", 7_000_000 if number == before else 1_000)
        job.operator("aten::mm", "gemm", 18_000)
    found = told_of(job.built)
    assert found["host.warm-up"].attributed_ns_per_step == 7_000_000
    assert "host.launch-bound" not in found or found["host.launch-bound"].severity == "info"
