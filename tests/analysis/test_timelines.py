"""The drawn timeline: the representative step, clipped and bounded, whatever the trace holds."""

from __future__ import annotations

import pytest

from whystall.analysis.results import Timeline
from whystall.analysis.trace_analysis import analyze_trace
from whystall.testing import TraceBuilder, trace


def timeline(built: TraceBuilder) -> Timeline:
    (drawn,) = analyze_trace(built.load()).timelines
    for lane in drawn.lanes:
        for start, duration, name, class_ in lane.events:
            assert 0 <= start <= start + duration <= drawn.window_ns
            assert 0 <= name < len(drawn.names)
            assert 0 <= class_ < len(drawn.classes)
    return drawn


def test_the_median_step_is_drawn() -> None:
    built = trace()
    at = 0
    for number, lasts in enumerate((5_000, 1_000, 2_000, 9_000, 2_500)):
        built.step(number, at=at, lasts=lasts).launch(f"k{number}", at=at + 10, runs_at=at + 20, lasts=lasts - 50)
        at += lasts
    drawn = timeline(built)
    assert drawn.step == "ProfilerStep#4"
    stream = drawn.lanes[0]
    assert (stream.label, stream.kind) == ("stream 7", "stream")
    assert [drawn.names[name] for _, _, name, _ in stream.events] == ["k4"]


def test_without_steps_the_whole_window_is_drawn() -> None:
    built = trace().launch("a", at=0, runs_at=1_000, lasts=10).launch("b", at=100, runs_at=2_000, lasts=10, stream=8)
    drawn = timeline(built)
    assert (drawn.step, drawn.window_ns) == (None, 1_010)
    assert sorted(lane.label for lane in drawn.lanes if lane.kind == "stream") == ["stream 7", "stream 8"]


def test_a_window_of_no_length_is_not_drawn() -> None:
    assert analyze_trace(trace().kernel("k", at=0, lasts=0).load()).timelines == []


def many(count: int, *, step: int, lasts: int, streams: int = 1, names: int = 1, kinds: int = 1) -> TraceBuilder:
    built = trace()
    for i in range(count):
        name = ("ncclAllReduce" if i % kinds else "gemm") + str(i % names)
        built.launch(name, at=i * step, runs_at=i * step + 10, lasts=lasts, call_lasts=1, stream=i % streams)
    return built


@pytest.mark.parametrize(
    "built",
    [
        many(6_000, step=100, lasts=50),
        many(6_000, step=100, lasts=50, kinds=2, names=6_000),
        many(6_000, step=0, lasts=1_000_000, names=3_000),
        many(6_000, step=1, lasts=1_000_000),
        many(6_000, step=100, lasts=50, streams=3_000),
        many(6_000, step=100, lasts=0),
    ],
    ids=["short", "alternating", "at once", "staircase", "streams", "instants"],
)
def test_any_trace_is_drawn_in_a_bounded_size(built: TraceBuilder) -> None:
    drawn = timeline(built)
    assert len(drawn.lanes) <= 24
    assert sum(len(lane.events) for lane in drawn.lanes) <= 24 * 1_500
    for lane in drawn.lanes:
        assert len(lane.events) <= 1_500
        if lane.label == "stream 0" and len(drawn.lanes) < 5:
            assert len(lane.events) + lane.coalesced >= 6_000 * 0.99
