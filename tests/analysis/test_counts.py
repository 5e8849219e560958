"""Counts of a step against a plain reading of the recording's JSON."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import whystall
from whystall.analysis.work_results import StepCount

TRACES = Path(__file__).parents[3] / "shared" / "traces"
# Whatever the host asks a device to do: kernels, copies and fills.
LAUNCHES = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"}
SYNCHRONIZATIONS = {"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"}
COUNTS = ("launches", "synchronizations", "operators", "kernels", "copies", "copied_bytes")
KINDS = {
    "user_annotation": "mark",
    "cpu_op": "operator",
    "operator": "operator",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "runtime": "call",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
}


def kind_of(event: dict[str, Any]) -> str:
    """What an event is: recordings of 2021 have other categories, and marks among the operators."""
    kind = KINDS.get(event.get("cat", "").lower(), "other")
    is_mark = event["name"].startswith(("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#"))
    return "mark" if kind == "operator" and is_mark else kind


def by_hand(path: Path) -> dict[str, list[int]]:
    """Per step mark how many calls begin in it, and the events with a correlation of such a call."""
    whole = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    events = [event | {"cat": kind_of(event)} for event in whole if event.get("ph") == "X"]
    marked = [event for event in events if event["name"].startswith("ProfilerStep#") and event["cat"] == "mark"]
    out: dict[str, list[int]] = {name: [] for name in COUNTS}
    for mark in sorted(marked, key=lambda event: event["ts"]):
        within = [event for event in events if 0 <= event["ts"] - mark["ts"] < mark["dur"]]
        calls = [event for event in within if event["cat"] == "call"]
        launched = {event["args"].get("correlation") for event in calls}
        ours = [event for event in events if event.get("args", {}).get("correlation") in launched]
        kernels, copies = ([event for event in ours if event["cat"] == kind] for kind in ("kernel", "copy"))
        names = Counter(event["name"] for event in calls)
        out["launches"].append(sum(names[name] for name in LAUNCHES))
        out["synchronizations"].append(sum(names[name] for name in SYNCHRONIZATIONS))
        out["operators"].append(sum(event["cat"] == "operator" for event in within))
        out["kernels"].append(len(kernels))
        out["copies"].append(len(copies))
        out["copied_bytes"].append(sum(int(event["args"]["bytes"]) for event in copies))
    return out


@pytest.mark.parametrize("name", ["resnet50-workers0-v100", "resnet50-workers4-v100", "ddp-2rank-a100"])
def test_counts_are_those_of_the_json(name: str) -> None:
    path = next(TRACES.glob(f"{name}*.json.gz"))
    expected = by_hand(path)
    found: dict[str, StepCount] = {row.name: row for row in whystall.analyze(path).counts}
    for count, each in expected.items():
        usual = sorted(each)[len(each) // 2]
        row = found[count]
        assert (row.usual, row.least, row.most, row.steps) == (usual, min(each), max(each), len(each)), count
        assert row.alike == each.count(usual)
