"""Traces that converters of Nsight Systems' and nvprof's databases wrote: kernels and calls under one category."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import whystall


def converted(path: Path) -> Path:
    """As nsys2json writes it: names for devices, streams and threads, and hardly an argument."""
    events: list[dict[str, Any]] = []
    for number in range(40):
        at = 1_000.0 + 100 * number
        call = {"name": "cudaLaunchKernel", "ts": at, "dur": 5.0, "pid": "Host 12", "tid": "CUDA API 12"}
        kernel = {"name": "ampere_sgemm_128x64_nn", "ts": at + 8, "dur": 80.0, "pid": "Device 1", "tid": "Stream 7"}
        events += [{"ph": "X", "cat": "cuda", "args": {}, **one} for one in (call, kernel)]
    events.append(
        {"ph": "X", "cat": "nvtx", "name": "forward", "ts": 1_000.0, "dur": 4_000.0, "pid": "Host 12", "tid": "NVTX 12"}
    )
    path.write_text(json.dumps(events), "utf-8")
    return path


def test_kernels_and_calls_are_told_apart(tmp_path: Path) -> None:
    trace = whystall.load(converted(tmp_path / "trace.json"))
    assert len(trace.device_events) == 40
    assert len(trace.runtime_calls) == 40
    assert set(trace.device_events["name"]) == {"ampere_sgemm_128x64_nn"}
    assert set(trace.device_events["device"]) == {1}
    assert set(trace.device_events["stream"]) == {7}
    assert trace.annotations["name"].to_list() == ["forward"]


def test_a_kernel_that_is_called_like_a_call_stays_one(tmp_path: Path) -> None:
    """As apex's, by the short name that a converter writes."""
    path = converted(tmp_path / "trace.json")
    path.write_text(path.read_text("utf-8").replace("ampere_sgemm_128x64_nn", "cuApplyLayerNorm"), "utf-8")
    trace = whystall.load(path)
    assert set(trace.device_events["name"]) == {"cuApplyLayerNorm"}
    assert set(trace.runtime_calls["name"]) == {"cudaLaunchKernel"}


def test_such_a_trace_is_analysed(tmp_path: Path) -> None:
    report = whystall.analyze(converted(tmp_path / "trace.json"))
    [device] = report.devices
    assert (device.kind, device.gpu_events) == ("gpu", 40)
    assert device.busy_ns == 40 * 80_000
