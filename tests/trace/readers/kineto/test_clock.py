"""Times: decimal microseconds, relative or absolute, or nanoseconds; always exact integers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whystall
from whystall.trace.model import Trace

YEAR_US = 366 * 86_400 * 1_000_000


def load(path: Path, times: list[str], duration: str = "2", base: int | None = None) -> Trace:
    head = f'"baseTimeNanoseconds": {base}, ' if base is not None else ""
    events = ", ".join(
        f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{time},"dur":{duration}}}' for time in times
    )
    path.write_text(f'{{{head}"traceEvents": [{events}]}}')
    return whystall.load(path, cache=False)


def starts(trace: Trace) -> list[int]:
    return trace.device_events["ts_ns"].to_list()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_absolute_microseconds_with_three_places(path: Path) -> None:
    trace = load(path, ["1712195495519689.047", "1712195495519690.001"], "0.001")
    assert starts(trace) == [1712195495519689047, 1712195495519690001]
    assert trace.device_events["duration_ns"].to_list() == [1, 1]


def test_relative_times_count_from_the_base(path: Path) -> None:
    base = 1_700_000_000_000_000_000
    assert starts(load(path, ["5.001", "6"], base=base)) == [base + 5_001, base + 6_000]


def test_absolute_times_do_not(path: Path) -> None:
    base = 1_700_000_000_000_000_000
    assert starts(load(path, ["1700000000000005.5"], base=base)) == [base + 5_500]


def test_relative_times_without_a_base_stay(path: Path) -> None:
    assert starts(load(path, ["5.001"])) == [5_001]


def test_19_digit_times_are_nanoseconds(path: Path) -> None:
    trace = load(path, ["1712195495519689047", "1712195495519690001"], "1500")
    assert starts(trace) == [1712195495519689047, 1712195495519690001]
    assert trace.device_events["duration_ns"].to_list() == [1500, 1500]
    assert any("nanoseconds" in warning for warning in trace.source.warnings)


def test_relative_nanoseconds(path: Path) -> None:
    base = 1_700_000_000_000_000_000
    time = YEAR_US * 2
    trace = load(path, [str(time), str(time + 7)], "1500", base=base)
    assert starts(trace) == [base + time, base + time + 7]
    assert trace.device_events["duration_ns"].to_list() == [1500, 1500]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=8), st.integers(0, 9 * 10**18 // 1000 - 10**12))
def test_decimals_are_exact(tmp_path_factory: pytest.TempPathFactory, offsets: list[int], whole: int) -> None:
    times = sorted(whole * 1000 + offset for offset in offsets)
    written = [f"{time // 1000}.{time % 1000:03}" for time in times]
    assert starts(load(tmp_path_factory.mktemp("clock") / "trace.json", written)) == times


def test_a_base_at_the_end_of_time(path: Path) -> None:
    """Found by fuzzing: the start still fits 64 bits, the end does not."""
    trace = load(path, ["1", "2"], "1000000", base=2**63 - 3_001)
    assert [entry.reason for entry in trace.source.quarantined] == ["start time far outside the trace"]
    assert trace.device_events.is_empty()


@pytest.mark.parametrize("base", ["-9223372036854775807", "9223372036854775807", "99999999999999999999", '"x"', "null"])
def test_any_base(path: Path, base: str) -> None:
    path.write_text(
        f'{{"baseTimeNanoseconds": {base}, "traceEvents": [{{"ph":"X","cat":"kernel","name":"k",'
        f'"ts":9000000000000000,"dur":1}}]}}'
    )
    trace = whystall.load(path, cache=False)
    assert len(trace.device_events) + sum(entry.events for entry in trace.source.quarantined) == 1


def test_times_as_text(path: Path) -> None:
    trace = load(path, ['"1712195495519689.047"'], '"2.5"')
    assert starts(trace) == [1712195495519689047]
    assert trace.device_events["duration_ns"].to_list() == [2500]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"ts": None}, "no usable start time"),
        ({"ts": -5}, "no usable start time"),
        ({"ts": "soon"}, "no usable start time"),
        ({"ts": 0}, "start time far outside the trace"),
        ({"ts": 9_000_000_000_000_000}, "start time far outside the trace"),
        ({"dur": None}, "no usable duration"),
        ({"dur": "long"}, "no usable duration"),
        ({"dur": -1}, "negative duration"),
        ({"dur": 1e15}, "duration of more than a day"),
        ({"ph": "B"}, "separate begin and end events are not read"),
        ({"ph": "E"}, "separate begin and end events are not read"),
    ],
)
def test_impossible_events_are_set_aside_by_reason(path: Path, event: dict[str, object], reason: str) -> None:
    healthy = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1_700_000_000_000_000, "dur": 3}
    path.write_text(json.dumps({"traceEvents": [healthy, {**healthy, **event}, healthy, healthy]}))
    trace = whystall.load(path, cache=False)
    assert [(entry.reason, entry.events) for entry in trace.source.quarantined] == [(reason, 1)]
    assert len(trace.device_events) == 3
    assert trace.source.events == 4
    device_ns = trace.source.quarantined[0].device_ns
    assert device_ns == (2 * 86_400 * 10**9 if "day" in reason else 0 if "dur" in event else 3_000)


def test_the_lost_device_time_does_not_overflow(path: Path) -> None:
    healthy = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1_700_000_000_000_000, "dur": 3}
    path.write_text(json.dumps({"traceEvents": [healthy, *[{**healthy, "dur": 9_000_000_000_000_000}] * 100]}))
    (entry,) = whystall.load(path, cache=False).source.quarantined
    assert entry.device_ns == 100 * 2 * 86_400 * 10**9


@pytest.mark.parametrize(("duration", "reason"), [(-1, "negative duration"), (1e15, "duration of more than a day")])
def test_an_event_of_any_phase_with_an_impossible_duration(path: Path, duration: float, reason: str) -> None:
    """A phase that means nothing, and a duration nonetheless (found by fuzzing)."""
    healthy = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1_700_000_000_000_000, "dur": 3}
    path.write_text(json.dumps({"traceEvents": [healthy, {**healthy, "ph": "q", "dur": duration}]}))
    report = whystall.analyze(path, cache=False)
    assert [entry.reason for entry in report.source.dropped] == [reason]
    assert report.devices[0].gpu_events == 1
