"""Counter events: those of devices become a table, the others stay, and nothing else of a trace changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whystall
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import EPOCH_NS
from whystall.trace import assemble
from whystall.trace.model import TABLES, Trace

BASE_US = EPOCH_NS // 1000


def job() -> TraceBuilder:
    return trace().operator("aten::mm", at=0, lasts=900).launch("gemm", at=100, runs_at=2_000, lasts=5_000)


def load(folder: Path, built: TraceBuilder, *events: dict[str, Any]) -> Trace:
    path = folder / "trace.json"
    built.events += list(events)
    built.write(path)
    return whystall.load(path, cache=False)


def sample(at_us: int, arguments: dict[str, Any], name: str = "PM Sampling", **more: Any) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": 0, "tid": 0, "ts": BASE_US + at_us, "args": arguments, **more}


def told(loaded: Trace) -> list[tuple[Any, ...]]:
    table = loaded.counters.with_columns(pl.col("name", "unit").cast(pl.String), pl.col("ts_ns") - EPOCH_NS)
    return table.select("ts_ns", "device", "name", "value", "unit").rows()


def test_counters_as_torch_writes_them(tmp_path: Path) -> None:
    """A process of their own, named after the device, and one series without a name."""
    built = job().counter("SM Active (%)", 80.5, at=1_500).counter("Power (W)", 300, at=1_500, device=1)
    loaded = load(tmp_path, built.counter("SM Active (%)", 0, at=500))
    assert told(loaded) == [
        (500, 0, "SM Active (%)", 0.0, "%"),
        (1_500, 1, "Power (W)", 300.0, None),
        (1_500, 0, "SM Active (%)", 80.5, "%"),
    ]
    assert len(loaded.other_events) == len(loaded.extra_arguments) == 0
    assert not loaded.source.warnings
    assert "thread" not in loaded.counters.columns


def test_counters_as_kineto_writes_them(tmp_path: Path) -> None:
    """One event for several metrics of a moment, in the process of the device, which has a category."""
    metrics = {"sm__cycles_active.avg": 12.5, "dram__bytes.sum": 1 << 40}
    loaded = load(tmp_path, job(), sample(3, metrics, cat="hardware_counters"), sample(2, metrics, cat="mtia_counters"))
    assert sorted(told(loaded)) == [
        (at, 0, name, float(value), None) for at in (2_000, 3_000) for name, value in sorted(metrics.items())
    ]


def test_the_device_of_a_process_is_the_one_that_its_kernels_name(tmp_path: Path) -> None:
    """Whoever merges files gives processes other numbers."""
    built = trace().event("kernel", "gemm", at=0, lasts=10, pid=900, thread=7, device=3, stream=7)
    assert told(load(tmp_path, built, sample(1, {"a": 1}, pid=900))) == [(1_000, 3, "a", 1.0, None)]


def test_kernels_without_arguments_are_of_the_device_that_their_process_names(tmp_path: Path) -> None:
    built = trace().event("kernel", "gemm", at=0, lasts=10, pid=2, thread=7)
    assert told(load(tmp_path, built, sample(1, {"a": 1}, pid=2))) == [(1_000, 2, "a", 1.0, None)]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(sample(1, {"a": 1}, pid=100), id="of the host"),
        pytest.param(sample(1, {"a": 1}, pid="Counters"), id="of a process without a device"),
        pytest.param(sample(1, {"queue_length": 1}, id=7), id="of a stream"),
        pytest.param(sample(1, {"a": "high"}), id="no number"),
        pytest.param(sample(1, {}), id="no value"),
        pytest.param({"ph": "C", "name": "a", "ts": BASE_US, "args": {"": 1}}, id="no process"),
    ],
)
def test_what_is_of_no_device_stays_among_other_events_and_is_said(tmp_path: Path, event: dict[str, Any]) -> None:
    loaded = load(tmp_path, job(), event)
    assert told(loaded) == []
    assert loaded.other_events["phase"].to_list() == [ord("C")]
    (warning,) = loaded.source.warnings
    assert warning.startswith("1 counter events name no device")


def test_a_process_in_which_two_devices_ran_tells_no_device(tmp_path: Path) -> None:
    built = trace()
    for device in (0, 1):
        built.event("kernel", "gemm", at=device, lasts=10, pid=5, thread=7, device=device, stream=7)
    assert told(load(tmp_path, built, sample(1, {"a": 1}, pid=5))) == []


def test_series_of_one_name_are_told_apart_by_their_events(tmp_path: Path) -> None:
    events = [
        sample(1, {"GB/s": 1}, "read"), sample(1, {"GB/s": 2}, "write"), sample(1, {"": 3}, "busy"),
        sample(1, {"value": 4}, "clock"), sample(1, {"value": 5}, "busy"), sample(1, {"busy": 6}, "other"),
    ]  # fmt: skip
    found = {name: value for _, _, name, value, _ in told(load(tmp_path, job(), *events))}
    assert found == {"read: GB/s": 1, "write: GB/s": 2, "busy": 3, "clock": 4, "busy: value": 5, "other: busy": 6}


def test_times_that_cannot_be_true_are_counted(tmp_path: Path) -> None:
    loaded = load(tmp_path, job(), *(sample(at, {"a": 1, "b": 2}) for at in (1, 10**12)))
    assert [row[0] for row in told(loaded)] == [1_000, 1_000]
    assert [(one.reason, one.events) for one in loaded.source.quarantined] == [("start time far outside the trace", 1)]


def test_memory_events_without_a_category_stay_what_they_are(tmp_path: Path) -> None:
    """Traces of 2021 write them as instants beside whatever else has none."""
    instant = {"ph": "i", "s": "t", "name": "[memory]", "pid": 100, "tid": 100, "ts": BASE_US + 1,
               "args": {"Device Type": 1, "Device Id": 0, "Bytes": 512}}  # fmt: skip
    loaded = load(tmp_path, job(), sample(1, {"": 7}, "Power"), instant, sample(2, {"": 8}, "Power"))
    assert loaded.memory_events.select("device", "bytes").rows() == [(0, 512)]
    assert [row[1:4] for row in told(loaded)] == [(0, "Power", 7.0), (0, "Power", 8.0)]


def test_more_counters_than_any_recording_has_are_counted_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "MOST_COUNTERS", 2)
    loaded = load(tmp_path, job(), *(sample(at, {name: at}) for at, name in enumerate("abacba", 1)))
    assert [(row[2], row[3]) for row in told(loaded)] == [("a", 1), ("b", 2), ("a", 3), ("b", 5), ("a", 6)]
    (lost,) = loaded.source.quarantined
    assert (lost.reason, lost.events) == ("more counters than can be distinguished", 1)


others = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "i", "C"]),
        "cat": st.sampled_from(["", "mine", "cpu_op"]),
        "name": st.sampled_from(["a", "b"]),
        "pid": st.sampled_from([0, 100, "GPU 1 Counters"]),
        "tid": st.sampled_from([7, 100]),
        "ts": st.integers(0, 50).map(lambda at: BASE_US + at),
        "dur": st.integers(0, 5),
        "args": st.dictionaries(
            st.sampled_from(["", "x", "y", "text"]), st.integers(0, 9) | st.sampled_from(["t", "u"])
        ),
    }
)


def of_device(event: dict[str, Any]) -> bool:
    return (
        event["ph"] == "C"
        and event["pid"] in (0, "GPU 1 Counters")
        and any(type(value) is int for value in event["args"].values())
    )


@settings(max_examples=60)
@given(st.lists(others, max_size=12))
def test_the_other_events_are_those_of_the_same_file_without_counters(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    both = load(folder, job(), *events)
    alone = load(folder, job(), *(event for event in events if not of_device(event)))
    for table in set(TABLES) - {"counters", "threads"}:
        frames = [getattr(one, table).drop("thread", strict=False) for one in (both, alone)]
        texts = {pl.Enum: pl.String, pl.Categorical: pl.String}
        mine, theirs = (sorted(frame.cast(texts).rows(), key=repr) for frame in frames)
        assert mine == theirs, table
    wanted = [
        ((event["ts"] - BASE_US) * 1000, 1 if event["pid"] != 0 else 0, float(value))
        for event in filter(of_device, events)
        for value in event["args"].values()
        if type(value) is int
    ]
    assert sorted((at, device, value) for at, device, _, value, _ in told(both)) == sorted(wanted)


def test_a_report_says_the_same_with_counters_and_without(tmp_path: Path) -> None:
    """Whatever counters say, no cause is named by it."""
    reports = []
    for counters in (False, True):
        built = trace()
        for step in range(6):
            at = step * 1_000_000
            built.step(step, at=at, lasts=900_000).operator("aten::mm", at=at, lasts=90_000)
            built.launch("gemm", at=at + 10_000, runs_at=at + 100_000, lasts=300_000)
            built.runtime("cudaStreamSynchronize", at=at + 150_000, lasts=500_000)
            for part in range(10 if counters else 0):
                built.counter("SM Active (%)", 10 * part, at=at + 100_000 * part)
                built.events.append(sample((at + 100_000 * part) // 1000, {"queue": part}, "Queue", pid=100))
        path = built.write(tmp_path / "trace.json")
        reports.append(json.loads(whystall.render(whystall.analyze(path, cache=False), "json")))
    without, told = reports
    assert len(told.pop("device_counters")) == 1
    assert without.pop("device_counters") == []
    assert told["source"].pop("warnings")
    for report in reports:
        for key in ("events", "files", "warnings"):
            report["source"].pop(key, None)
    assert told == without
    assert told["findings"]


def test_values_that_nothing_counts_are_set_aside(tmp_path: Path) -> None:
    loaded = load(tmp_path, job(), sample(1, {"a": 1e300}), sample(2, {"a": 2}))
    assert [row[3] for row in told(loaded)] == [2.0]
    assert [(one.reason, one.events) for one in loaded.source.quarantined] == [("no usable value (counters)", 1)]
