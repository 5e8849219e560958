"""A stretch of a trace: what overlaps it and the launches of that, tied together as before."""

from __future__ import annotations

from whystall.analysis.excerpt import excerpt
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import EPOCH_NS
from whystall.trace.model import Trace


def recorded() -> TraceBuilder:
    """Ten operators that launch a kernel each, which runs half a millisecond later; one Python call around all."""
    built = trace()
    built.python("train.py(1): main", at=0, lasts=2_000_000)
    for number in range(10):
        at = number * 100_000
        built.operator(f"aten::op{number}", at=at, lasts=20_000)
        built.launch(f"kernel{number}", at=at + 5_000, runs_at=at + 500_000, lasts=50_000)
    return built.memory(at=600_000, size=1, allocated=1, reserved=1).counter("SM", 1, at=600_000)


def cut(begin: int, end: int) -> Trace:
    return excerpt(recorded().load(), (EPOCH_NS + begin, EPOCH_NS + end))


def test_what_overlaps_stays_whole_and_launches_come_with_it() -> None:
    part = cut(640_000, 720_000)
    assert part.device_events["name"].to_list() == ["kernel1", "kernel2"]
    assert part.operators["name"].to_list() == ["aten::op7"]
    assert part.python_functions["duration_ns"].to_list() == [2_000_000]
    launched = part.runtime_calls["ts_ns"].gather(part.device_events["launch"])
    assert (launched - EPOCH_NS).to_list() == [105_000, 205_000]
    assert (part.runtime_calls["ts_ns"] - EPOCH_NS).to_list() == [105_000, 205_000, 705_000]


def test_no_link_leads_to_another_row_than_before() -> None:
    part = cut(640_000, 720_000)
    assert part.operators["frame"].null_count() == len(part.operators)
    assert part.device_events["operator"].null_count() == len(part.device_events)
    assert len(part.memory_events) == len(part.counters) == 0


def test_a_launch_that_was_not_recorded_stays_unknown() -> None:
    built = trace()
    built.kernel("lonely", at=0, lasts=10)
    built.launch("gemm", at=100, runs_at=2_000, lasts=10)
    part = excerpt(built.load(), (EPOCH_NS, EPOCH_NS + 5_000))
    assert part.device_events["launch"].to_list() == [None, 0]


def test_host_events_are_ordered_anew() -> None:
    part = cut(600_000, 720_000)
    events = len(part.operators) + len(part.annotations) + len(part.python_functions) + len(part.runtime_calls)
    assert sorted(part.host_order.tolist()) == list(range(events))


def test_an_empty_stretch_is_a_trace_without_events() -> None:
    part = cut(5_000_000, 6_000_000)
    assert len(part.device_events) == len(part.operators) == len(part.runtime_calls) == 0
