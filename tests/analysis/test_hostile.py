"""Shapes of traces that once took quadratic time: at a real size each would run for hours if it did again.

No time is asserted: what is checked is that the answer is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from whystall.analysis.trace_analysis import analyze_trace
from whystall.testing import TraceBuilder, trace

COUNT = 10_000


def name(number: int) -> str:
    """A name without digits, since those are not told apart."""
    text = ""
    while True:
        text += chr(97 + number % 26)
        number //= 26
        if not number:
            return text


def launches(**where: Callable[[int], int]) -> TraceBuilder:
    built = trace()
    for i in range(COUNT):
        places: dict[str, Any] = {key: place(i) for key, place in where.items()}
        built.launch("k", at=10 * i, runs_at=10 * i + 7, lasts=2, call_lasts=5, **places)
    return built


def steps() -> TraceBuilder:
    built = launches()
    for i in range(COUNT):
        built.step(i, at=10 * i, lasts=10)
    return built


def marked(label: Callable[[int], str], **where: Callable[[int], int]) -> TraceBuilder:
    built = launches()
    for i in range(COUNT):
        places: dict[str, Any] = {key: place(i) for key, place in where.items()}
        built.annotation(label(i), at=10 * i, lasts=5, **places)
    return built


def arrows() -> TraceBuilder:
    """Events at one place, none with arguments, and as many arrows that could mean any of them."""
    built = trace().runtime("call", at=0, lasts=1)
    call, kernel = built.events[0], trace().kernel("k", at=10, lasts=2).events[0]
    kernel.pop("args")
    for i in range(COUNT):
        built.events += [
            kernel,
            {**kernel, "ph": "f", "cat": "ac2g", "id": i, "bp": "e"},
            {**call, "ph": "s", "cat": "ac2g", "id": i},
        ]
    return built


def one_correlation() -> TraceBuilder:
    built = trace()
    for i in range(COUNT):
        built.runtime("call", at=i % 3, lasts=1, correlation=5).kernel("k", at=10 + i % 3, lasts=2, correlation=5)
    return built


def nested_modules() -> TraceBuilder:
    built = trace().launch("k", at=0, runs_at=9_000_000, lasts=1)
    for i in range(COUNT):
        built.python(f"nn.Module: M_{i}", at=10 * i, lasts=1_000_000 - 20 * i)
    return built


SHAPES: dict[str, Callable[[], TraceBuilder]] = {
    "a thread per launch": lambda: launches(thread=lambda i: 1_000 + i),
    "a stream per event": lambda: launches(stream=lambda i: i),
    "a device per ten events": lambda: launches(device=lambda i: i // 10),
    "a step per event": steps,
    "a name per annotation": lambda: marked(name),
    "a thread per optimizer": lambda: marked(lambda _: "Optimizer.step#A.step", thread=lambda i: 1_000 + i),
    "a name per wait": lambda: marked(lambda i: f"enumerate(DataLoader)#{i}.__next__"),
    "arrows at one place": arrows,
    "one correlation": one_correlation,
    "nested modules": nested_modules,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_event_is_accounted_for(shape: str) -> None:
    loaded = SHAPES[shape]().load()
    result = analyze_trace(loaded)
    assert sum(device.gpu_events for device in result.devices) == len(loaded.device_events)
    for device in result.devices:
        assert device.ledger.total_ns == device.window_ns
        assert sum(row.events for row in device.streams) == device.gpu_events
        assert all(step.ledger.total_ns == step.window_ns for step in device.steps)
