"""Faults that are put into recordings: time stands still for all at once, and the truth is what was put in."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import pytest
from benchmarks.accuracy.transplants import FAULTS, transplanted

STEP_US: Final = 1_000.0
STEPS: Final = 8


def recording() -> list[dict[str, Any]]:
    """Steps of an operator with a launch, its kernel, and a pause in which nothing goes on."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    for number in range(STEPS):
        at = 5_000.0 + number * STEP_US
        host = {"ph": "X", "pid": 1, "tid": 2}
        events += [
            {**host, "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": at, "dur": STEP_US - 1},
            {**host, "cat": "cpu_op", "name": "aten::mm", "ts": at + 10, "dur": 100},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 50, "dur": 10},
            {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "gemm", "ts": at + 70, "dur": 600},
        ]
    events.append({"ph": "X", "pid": 1, "tid": 2, "cat": "cpu_op", "name": "aten::add", "ts": at + STEP_US, "dur": 5})
    return events


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if not fault.once])
def test_every_step_is_longer_by_what_was_put_in_and_nothing_else_is(name: str) -> None:
    made = transplanted(recording(), FAULTS[name], 2.0, 0.9)
    assert made is not None
    events, gain = made
    assert gain == pytest.approx(3.0, rel=0.01)
    steps = [event for event in events if str(event.get("name")).startswith("ProfilerStep")]
    assert [event["dur"] for event in steps] == pytest.approx([3 * STEP_US - 1] * STEPS, rel=0.01)
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert [event["dur"] for event in kernels] == [600] * STEPS
    starts = [event["ts"] for event in kernels]
    assert [b - a for a, b in pairwise(starts)] == pytest.approx([3 * STEP_US] * (STEPS - 1), rel=0.01)


def test_what_is_put_in_lies_in_the_pause() -> None:
    made = transplanted(recording(), FAULTS["allocations"], 2.0, 0.9)
    assert made is not None
    calls = [event for event in made[0] if event.get("name") == "cudaMalloc"]
    kernels = [event for event in made[0] if event.get("cat") == "kernel"]
    assert len(calls) == 8 * STEPS
    for call in calls:
        assert not any(one["ts"] < call["ts"] + call["dur"] and call["ts"] < one["ts"] + one["dur"] for one in kernels)


def test_a_start_in_front_changes_no_step() -> None:
    made = transplanted(recording(), FAULTS["context"], 2.0, 0.5)
    assert made is not None
    events, gain = made
    assert gain == 1.0
    steps = [event for event in events if str(event.get("name")).startswith("ProfilerStep")]
    assert [event["dur"] for event in steps] == [STEP_US - 1] * STEPS
    (context,) = [event for event in events if event.get("name") == "cudaFree"]
    assert context["ts"] + context["dur"] <= steps[0]["ts"]


def test_a_recording_without_a_pause_has_no_place_for_a_fault() -> None:
    events = [{**event, "dur": 5 * STEP_US} if event.get("cat") == "kernel" else event for event in recording()]
    assert transplanted(events, FAULTS["silence"], 2.0, 0.5) is None


def test_a_recording_with_a_loader_takes_no_other_one() -> None:
    fetch = {"ph": "X", "pid": 1, "tid": 2, "cat": "user_annotation", "ts": 5_001.0, "dur": 5}
    events = [*recording(), {**fetch, "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"}]
    assert transplanted(events, FAULTS["workers"], 2.0, 0.5) is None
    assert transplanted(events, FAULTS["silence"], 2.0, 0.9) is not None
