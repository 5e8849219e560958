"""Recordings that are not whole: what they lack is said, and nothing is concluded from what is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.diagnosis.cases import diagnosed, told_of

import whystall
from whystall.analysis.trace_analysis import analyze_trace, signals_of
from whystall.analysis.wholeness import gaps_of
from whystall.testing import TraceBuilder, trace

STEPS, OPERATORS = 8, 50


def job(*, frames: int = 0) -> TraceBuilder:
    """Steps of operators that launch a kernel each, numbered as the profiler does; frames are numbered as well."""
    built = trace()
    index = 0
    for step in range(STEPS):
        begin = step * OPERATORS * 20_000
        built.step(step, at=begin, lasts=OPERATORS * 20_000)
        for place in range(OPERATORS):
            at = begin + place * 20_000
            for depth in range(frames):
                built.python(f"train.py({depth}): f", at=at + depth, lasts=18_000 - 2 * depth, **{"Ev Idx": index})
                index += 1
            shapes: dict[str, Any] = {"Ev Idx": index, "Input Dims": [[8, 8]], "Input type": ["float"]}
            built.operator("aten::relu", at=at + 10, lasts=15_000, **shapes)
            index += 1
            built.launch("elementwise", at=at + 2_000, runs_at=at + 5_000, lasts=3_000)
    return built


def only(built: TraceBuilder, kept: Callable[[int, dict[str, Any]], bool]) -> TraceBuilder:
    built.events = [event for number, event in enumerate(built.events) if kept(number, event)]
    return built


def thinned(built: TraceBuilder, part: int) -> TraceBuilder:
    """One operator in ``part``."""
    seen = iter(range(len(built.events)))
    return only(built, lambda _, event: event["cat"] != "cpu_op" or next(seen) % part == 0)


def sentences(built: TraceBuilder) -> list[str]:
    return [gap.sentence for gap in gaps_of(built.load())]


@pytest.mark.parametrize("frames", [0, 3])
def test_a_whole_recording_lacks_nothing(frames: int) -> None:
    assert sentences(job(frames=frames)) == []


@pytest.mark.parametrize("part", [4, 100])
def test_operators_that_were_thinned_are_said_to_be_missing_and_count_as_absent(part: int) -> None:
    built = thinned(job(), part)
    (told,) = sentences(built)
    assert told.startswith("most operators were left out")
    signals = signals_of(built.load())
    assert [signals[one] for one in ("operators", "shapes", "launch_calls")] == [False, False, True]


def test_half_of_the_operators_are_enough_to_go_by() -> None:
    assert sentences(thinned(job(), 2)) == []


def test_frames_that_were_left_out_leave_no_launch_without_an_operator() -> None:
    """Their numbers are missing as well: three of four, as of thinned operators."""
    assert sentences(only(job(frames=3), lambda _, event: event["cat"] != "python_function")) == []


def test_of_thinned_operators_nothing_is_diagnosed_that_would_rest_on_them() -> None:
    abstained = {one.id for one in diagnosed(thinned(job(), 100)).abstained}
    assert {"compute.fusible", "compute.redundant-work"} <= abstained
    assert "host.python" not in told_of(thinned(job(), 100))


def test_without_any_operator_a_gap_is_not_said_to_be_python() -> None:
    """Device and runtime alone, as without ProfilerActivity.CPU."""
    bare = only(job(), lambda _, event: event["cat"] not in ("cpu_op", "user_annotation"))
    (device,) = analyze_trace(bare.load()).devices
    assert device.ledger.idle_python == 0
    assert device.ledger.idle_unknown > 0.5 * device.window_ns
    assert sum(reason.idle_ns for reason in device.idle_unknown) == device.ledger.idle_unknown
    (whole,) = analyze_trace(job().load()).devices
    assert whole.ledger.idle_python > 0
    assert "host.python" not in told_of(bare)


def graphs(*, recorded: int) -> TraceBuilder:
    """Ten steps that launch a kernel and a graph of twenty; of ``recorded`` graphs the kernels are there."""
    built = trace()
    for step in range(10):
        at = step * 1_000_000
        built.step(step, at=at, lasts=1_000_000)
        built.operator("aten::relu", at=at, lasts=15_000)
        built.launch("elementwise", at=at + 2_000, runs_at=at + 5_000, lasts=3_000)
        built.runtime("cudaGraphLaunch", at=at + 20_000, lasts=9_000, correlation=9_000 + step)
        for kernel in range(20 if step < recorded else 0):
            built.kernel("gemm", at=at + 40_000 + kernel * 40_000, lasts=39_000, correlation=9_000 + step)
    return built


def test_graphs_whose_kernels_were_not_recorded_promise_nothing() -> None:
    built = graphs(recorded=0)
    (told,) = sentences(built)
    assert told.startswith("10 of 10 launches of graphs show no kernel")
    found = told_of(built)
    assert "capture.perturbed" in found
    assert all(finding.severity == "info" for finding in found.values())


@pytest.mark.parametrize("recorded", [5, 10])
def test_graphs_of_which_some_reach_beyond_the_recording_are_no_matter(recorded: int) -> None:
    assert sentences(graphs(recorded=recorded)) == []
    assert "capture.perturbed" not in told_of(graphs(recorded=recorded))


def test_work_in_flight_when_the_recording_began_is_counted() -> None:
    built = job()
    for number in range(7):
        built.kernel("before", at=-100_000 + number * 10_000, lasts=9_000, correlation=70_000 + number)
    (told,) = sentences(built)
    assert told.startswith(
        f"7 of {STEPS * OPERATORS + 7:,} device events have no launch call in the file, 7 of which began"
    )
    assert signals_of(built.load())["launch_calls"]


def test_of_kernels_without_launches_nobody_says_why_the_device_waited() -> None:
    built = job()
    for event in built.events:
        if event["cat"] == "kernel" and int(event["args"]["correlation"]) % 3:
            event["args"]["correlation"] += 1_000_000
    (told,) = sentences(built)
    assert "have no launch call in the file" in told
    assert not signals_of(built.load())["launch_calls"]
    found = told_of(built)
    assert not any(cause.startswith("host.") for cause in found)


def launching(*, kernels: Callable[[int], bool], captured: bool = False) -> TraceBuilder:
    """A hundred launches, some of which show a kernel."""
    built = trace()
    if captured:
        built.runtime("cudaStreamBeginCapture_v2", at=0, lasts=500)
    for number in range(100):
        at = 1_000 + 10_000 * number
        if kernels(number):
            built.launch("gemm", at=at, runs_at=at + 5_000, lasts=4_000)
        else:
            built.runtime("cudaLaunchKernel", at=at, lasts=1_000, correlation=10_000 + number)
    if captured:
        built.runtime("cudaStreamEndCapture", at=1_100_000, lasts=500)
        built.launch("gemm", at=1_200_000, runs_at=1_205_000, lasts=4_000)
    return built


@pytest.mark.parametrize(
    ("built", "said"),
    [
        (
            launching(kernels=lambda number: number % 3 > 0),
            ["34 of 100 launches have no kernel: these kernels were not recorded"],
        ),
        (
            launching(kernels=lambda number: number < 40),
            ["60 of 100 launches are without a kernel: the recording ended"],
        ),
        (launching(kernels=lambda number: number % 50 > 0), []),  # some launches are refused
        (launching(kernels=lambda _: False, captured=True), []),  # recorded into a graph, and not run
        (
            launching(kernels=lambda _: False),
            ["100 launches but no device event: the device was not recorded"],
        ),
    ],
)
def test_launches_without_kernels_are_said_first(built: TraceBuilder, said: list[str]) -> None:
    told = sentences(built)
    assert len(told) == len(said)
    assert all(sentence.startswith(start) for sentence, start in zip(told, said, strict=True))


def test_annotations_alone_beside_a_device_are_no_job_on_a_cpu() -> None:
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}
    built = trace(deviceProperties=[device]).annotation("forward", at=0, lasts=1_000_000)
    (told,) = sentences(built)
    assert told.startswith("only annotations were recorded of a job on NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    "name",
    [
        "aten::_mps_convolution",
        "aten::_lstm_mps",
        "aten::_scaled_dot_product_attention_math_for_mps",
        "autograd::engine::evaluate_function: MpsConvolutionBackward0",
    ],
)
def test_a_job_on_apples_gpu_is_no_job_on_a_cpu(name: str) -> None:
    built = trace().operator("aten::relu", at=1_000, lasts=50)
    for number in range(30):
        built.operator(name, at=10_000 * (number + 1), lasts=2_000)
    (told,) = sentences(built)
    assert told.startswith("30 operators worked on Apple's GPU, which torch's profiler does not record.")
    report = whystall.analyze(built.load())
    text = whystall.render(report, "terminal")
    assert "none are expected on a CPU job" not in text
    assert "Apple's GPU" in text
    assert not [one for one in report.findings if one.severity != "info"]


@pytest.mark.parametrize(("early", "said"), [(0, 0), (3, 0), (10, 1), (80, 1)])
def test_kernels_that_begin_before_their_launch_tell_that_clocks_differ(early: int, said: int) -> None:
    built = trace()
    for number in range(100):
        at = 1_000_000 + 100_000 * number
        built.launch("gemm", at=at, runs_at=at - 7_000 if number < early else at + 5_000, lasts=4_000)
    gaps = gaps_of(built.load())
    assert len(gaps) == said
    if said:
        assert gaps[0].sentence.startswith(f"{early} of 100 device events begin before their launch, by up to 7 us")
        assert gaps[0].voids == (("launch_calls",) if early > 50 else ())
