"""Files into which people merged the traces of several ranks: each process is a recording of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.jobs import Job

import whystall
from whystall.trace.load import load_trace, load_traces

PIDS = 100_000_000
COUNT = 12


def rank(number: int, *, late_ns: int, stated: bool = True) -> list[dict[str, Any]]:
    """Steps of three products and an exchange on a device of its own; launches are numbered as on every rank."""
    job = Job()
    for _ in job.steps(COUNT):
        job.python(late_ns)
        for _ in range(3):
            job.operator("aten::mm", f"gemm_of_{number}", 300_000)
        job.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 200_000, stream=20)
        job.wait()
    found = json.loads(job.built.json())["traceEvents"]
    for event in found:
        on_device = event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        event["pid"] = PIDS * number + (number if on_device else 100)
        event["args"] = {**event.get("args", {}), **({"device": number} if on_device else {})}
        if stated:
            event["args"]["rank"] = number
    return list(found)


def merged(path: Path, *ranks: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"traceEvents": [event for one in ranks for event in one]}), "utf-8")
    return path


@pytest.mark.parametrize("stated", [True, False])
def test_each_process_has_its_threads_and_its_device(tmp_path: Path, *, stated: bool) -> None:
    ranks = [rank(n, late_ns=50_000 + 1_700 * n, stated=stated) for n in range(3)]
    found = load_traces(merged(tmp_path / "all.json", *ranks))
    assert [trace.rank for trace in found] == ([0, 1, 2] if stated else [None] * 3)
    for number, trace in enumerate(found):
        assert set(trace.device_events["device"]) == {number}
        assert len(trace.steps) == COUNT
        assert set(trace.operators["name"]) == {"aten::mm"}
        assert trace.device_events["launch"].null_count() == 0
        names = set(trace.device_events["name"].cast(str)) - {"ncclDevKernel_AllReduce_Sum_f32_RING_LL"}
        assert names == {f"gemm_of_{number}"}
        called = trace.runtime_calls["ts_ns"].to_numpy()[trace.device_events["launch"].to_numpy()]
        assert (trace.device_events["ts_ns"].to_numpy() >= called).all()


@pytest.mark.parametrize("stated", [True, False])
def test_a_merged_file_is_analysed_as_its_ranks(tmp_path: Path, *, stated: bool) -> None:
    ranks = [rank(n, late_ns=50_000 + 1_700 * n, stated=stated) for n in range(3)]
    report = whystall.analyze(merged(tmp_path / "all.json", *ranks))
    assert report.source.ranks == [0, 1, 2]
    assert [device.rank for device in report.devices] == [0, 1, 2]


def test_a_file_of_one_process_stays_one(tmp_path: Path) -> None:
    trace = load_trace(merged(tmp_path / "one.json", rank(0, late_ns=0)))
    assert "process" not in trace.name


@pytest.mark.parametrize("lost", ["device", "correlation"])
def test_where_nothing_tells_the_processes_apart_nothing_is_lost(tmp_path: Path, lost: str) -> None:
    events = [*rank(0, late_ns=0, stated=False), *rank(1, late_ns=500, stated=False)]
    for event in events:
        event["args"].pop(lost, None)
    found = load_traces(merged(tmp_path / "all.json", events))
    assert sum(len(trace.device_events) for trace in found) == 2 * COUNT * 4
    assert sum(len(trace.operators) for trace in found) == 2 * COUNT * 3


def numbered(events: list[dict[str, Any]], first: int) -> list[dict[str, Any]]:
    """The same with launches that are numbered from elsewhere."""
    for event in events:
        if "correlation" in event["args"]:
            event["args"]["correlation"] += first
        if event.get("cat") == "ac2g":
            event["id"] += first
    return events


@pytest.mark.parametrize("first", [0, 1, 2, 5])
def test_numbers_of_launches_that_nearly_agree_are_told_apart(tmp_path: Path, first: int) -> None:
    """Ranks that run the same program count alike, from here or from a few launches further on."""
    ranks = [numbered(rank(n, late_ns=50_000, stated=False), first * n) for n in range(3)]
    found = load_traces(merged(tmp_path / "all.json", *ranks))
    assert [set(trace.device_events["device"]) for trace in found] == [{0}, {1}, {2}]
    assert all(trace.device_events["launch"].null_count() == 0 for trace in found)


def test_a_label_in_front_of_processes_says_whose_a_device_is(tmp_path: Path) -> None:
    """As SGLang merges: the process of rank 0 has the label of device 1, whatever the numbers of launches say."""
    ranks = [rank(n, late_ns=50_000, stated=False) for n in range(2)]
    for number, events in enumerate(ranks):
        for event in events:
            on_device = event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
            event["pid"] = f"[TP{(1 - number if on_device else number):02d}] {event['pid']}"
    found = load_traces(merged(tmp_path / "all.json", *ranks))
    assert [set(trace.device_events["device"]) for trace in found] == [{1}, {0}]
