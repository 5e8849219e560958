"""capture.perturbed: a recording that is mostly empty, or of far shorter steps than the run's, is told;
others are not.
"""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import found_in, run, told_of
from tests.diagnosis.jobs import Job

from whystall.analysis.trace_analysis import analyze_trace
from whystall.diagnosis.diagnose import diagnose_run
from whystall.diagnosis.run_facts import RunFacts
from whystall.testing import TraceBuilder, trace


def bursts(gaps: list[int], kernel: str = "gemm", *, api: str = "cuda") -> Job:
    """Bursts of ten kernels of 0.1 ms with gaps between them, and no marks of steps."""
    job = Job(api=api)
    for gap in [*gaps, 0]:
        for _ in range(10):
            job.operator("aten::mm", kernel, 100_000)
        job.at = job.busy_until[7] + gap
    return job


@pytest.mark.parametrize(
    ("kernel", "api"), [("gemm", "cuda"), ("Cijk_Alik_Bljk_BBS_BH_MT256x128x64_MI16x16x1_SN", "hip")]
)
def test_a_recording_that_is_mostly_one_gap_is_told(kernel: str, api: str) -> None:
    finding = told_of(bursts([30_000_000], kernel, api=api).built)["capture.perturbed"]
    assert (finding.severity, finding.remedy) == ("info", None)
    assert "mostly empty" in finding.title
    busy = {one.what: one.value for one in finding.evidence}["of it with device events"]
    assert busy == 2 * 10 * 100_000


@pytest.mark.parametrize(
    "gaps",
    [
        pytest.param([15_000_000], id="busy for more than a tenth"),
        pytest.param([30_000_000] * 4, id="many gaps, as of a slow host"),
        pytest.param([10_000], id="busy"),
    ],
)
def test_busy_recordings_and_slow_hosts_are_not_empty(gaps: list[int]) -> None:
    assert "capture.perturbed" not in told_of(bursts(gaps).built)


def test_where_steps_are_marked_the_gap_is_part_of_one() -> None:
    job = Job()
    for _ in job.steps(3):
        job.python(50_000_000)
        job.operator("aten::mm", "gemm", 100_000)
        job.wait()
    assert "capture.perturbed" not in told_of(job.built)


@pytest.mark.parametrize(("usual_ns", "told"), [(40_000_000, True), (29_000_000, False), (11_000_000, False)])
def test_a_recording_of_far_shorter_steps_is_not_that_of_a_healthy_run(usual_ns: int, told: bool) -> None:
    built = trace()
    for number in range(5):  # nothing but operators, 10 ms each
        built.step(number, at=number * 10_000_000, lasts=9_990_000)
        built.operator("aten::mm", at=number * 10_000_000 + 1_000, lasts=9_900_000)
    recorded = built.load()
    steps = run(median_ns=usual_ns, total_ns=100 * usual_ns, durations_ns=[usual_ns] * 100)

    verdict, found = diagnose_run([recorded], [analyze_trace(recorded, rank=0)], [steps], RunFacts())

    assert ("capture.perturbed" in {finding.id for finding in found.findings}) is told
    assert verdict.summary.startswith("The recorded steps are far shorter" if told else "Nothing was found")


def reading(*, lost: frozenset[int] = frozenset(), steps: int = 10) -> TraceBuilder:
    """Steps of ten kernels of 0.4 ms each, whose loss is read; of the kernels of some steps the file has none."""
    job = Job()
    for number in job.steps(steps):
        for _ in range(10):
            job.operator("aten::mm", "gemm" if number not in lost else "lost", 400_000)
        job.wait()
    built = job.built
    built.events[:] = [
        event for event in built.events if not (event.get("cat") == "kernel" and event["name"] == "lost")
    ]
    return built


def test_kernels_that_were_lost_between_others_are_no_idle_time() -> None:
    """Three of ten steps show no kernel: the device seems to wait for the host that waits for it."""
    finding = told_of(reading(lost=frozenset({4, 5, 6})))["capture.perturbed"]
    values = {one.what: one.value for one in finding.evidence}
    assert values["launches of kernels"] == 100
    assert values["of them without a kernel in the file"] == 30
    unseen = values["time without device events in which these may have run"]
    # Thirty kernels, what lies between them, and what the host does between the steps.
    assert 30 * 400_000 <= float(unseen) <= 31 * 420_000
    found = found_in(reading(lost=frozenset({4, 5, 6})))
    assert not [one for one in found.values() if one.gain is not None and one.severity != "info"]


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(frozenset[int](), id="all are there"),
        pytest.param(frozenset({7, 8, 9}), id="the recording ended before they ran"),
    ],
)
def test_what_is_whole_between_its_first_and_last_kernel_is_judged(lost: frozenset[int]) -> None:
    assert "capture.perturbed" not in told_of(reading(lost=lost))


@pytest.mark.parametrize(
    ("gap_ns", "call", "told"),
    [
        (32_000, "hipGraphLaunch", True),
        (1_000, "hipGraphLaunch", False),
        (32_000, "hipModuleLaunchKernel", False),  # of a whole program, as some compilers launch it
    ],
)
def test_gaps_between_the_kernels_of_a_graph_may_be_the_profilers(gap_ns: int, call: str, told: bool) -> None:
    job, kernels, lasts = Job(api="hip"), 200, 80_000
    for number, _ in enumerate(job.steps(4)):
        at, correlation = job.at, 10_000 + number
        job.built.runtime(call, at=at, lasts=20_000, correlation=correlation)
        for place in range(kernels):
            start = at + 10_000 + place * (lasts + gap_ns)
            job.built.kernel("attention_kernel", at=start, lasts=lasts, correlation=correlation)
        job.at = at + 10_000 + kernels * (lasts + gap_ns)
        job.wait()
    findings = told_of(job.built)
    assert ("capture.perturbed" in findings) == told
    if told:
        title = findings["capture.perturbed"].title
        assert "of its time between the kernels of its graphs (32.0 µs each)" in title
        share = {row.what: row.value for row in findings["capture.perturbed"].evidence}
        assert share["of the device's time between the kernels of its graphs"] == pytest.approx(32 / 112, abs=0.01)
