"""Snapshots of real devices, of other people: what must hold of each, and peaks worked out a second time."""

from __future__ import annotations

import os
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TRACES

from whystall.memory.explain import explain
from whystall.memory.read import read_snapshot
from whystall.memory.results import MemoryReport
from whystall.report.document import as_text
from whystall.report.memory_text import memory_document

RECORDINGS = TRACES.parent / "recordings"
FILES = sorted(RECORDINGS.glob("snapshot-*.pickle"))
pytestmark = pytest.mark.skipif(
    not FILES and os.environ.get("WHYSTALL_REQUIRE_TRACES") != "1",
    reason="the recorded snapshots are not beside the repository (../shared/recordings)",
)
EACH = pytest.mark.parametrize("path", FILES or [RECORDINGS], ids=lambda path: path.stem)


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


@cache
def raw(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        value = _Plain(file).load()
    assert isinstance(value, dict)
    return value


@cache
def told(path: Path) -> MemoryReport:
    return explain(read_snapshot(path))


def peak_by_hand(value: dict[str, Any], device: int) -> int:
    """The most bytes that the allocator's blocks held, from the last moment backwards."""
    held = {
        block["address"]: block["size"]
        for segment in value["segments"]
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    now: int = sum(held.values())
    most = now
    for event in reversed(value["device_traces"][device]):
        if event["action"] == "free_requested":
            held[event["addr"]] = max(-(-event["size"] // 512), 1) * 512
            now += held[event["addr"]]
            most = max(most, now)
        elif event["action"] == "alloc":
            now -= held.pop(event["addr"])
    return most


@EACH
def test_the_peak_is_what_the_raw_events_give(path: Path) -> None:
    for device in told(path).devices:
        number = int(device.device.removeprefix("device "))
        assert device.peak.allocated_bytes == peak_by_hand(raw(path), number)


@EACH
def test_parts_sum_to_the_peak_and_no_line_is_blank(path: Path) -> None:
    for device in told(path).devices:
        peak = device.peak
        assert sum(one.bytes for one in peak.held) == peak.allocated_bytes
        assert all(one.bytes <= peak.allocated_bytes for one in peak.held)
        assert sum(one.bytes for one in peak.holders) == peak.allocated_bytes or peak.holders_left_out
        assert sum(one.bytes for out in device.out_of_memory[-1:] for one in out.held) == (
            device.out_of_memory[-1].allocated_bytes if device.out_of_memory else 0
        )
        for one in peak.holders:
            assert one.label is None or one.label.strip()
            assert one.function is None or (one.function.strip() and "unwind" not in one.function)
            assert one.site is None or (one.site.strip() and not one.site.startswith("??"))
            assert one.because
        rows = as_text(memory_document([told(path)], 100), 100).partition("by line")[2].partition("\n\n")[0]
        assert all(line.strip() and not line.startswith(" ") for line in rows.splitlines()[1:])


@EACH
def test_a_line_is_named_wherever_a_stack_has_one(path: Path) -> None:
    """Every allocation at the peak with a Python frame of its own has a line."""
    lines = {
        (frame["filename"].replace("\\", "/").rpartition("/")[2], frame["line"])
        for trace in raw(path)["device_traces"]
        for event in trace
        if event["action"] == "alloc"
        for frame in event["frames"]
        if frame["filename"].endswith(".py")
    }
    for device in told(path).devices:
        for one in device.peak.holders:
            if one.site is not None and one.site != "(C++)":
                file, _, number = one.site.rpartition(":")
                assert (file.rpartition("/")[2], int(number)) in lines


@EACH
def test_nothing_promises_more_than_there_is(path: Path) -> None:
    for device in told(path).devices:
        for out in device.out_of_memory:
            assert all(one.frees_bytes <= out.allocated_bytes + out.asked_bytes for one in out.rescues)
            assert all("expandable" not in one.remedy or one.frees_bytes <= out.asked_bytes for one in out.rescues)
        if device.out_of_memory:
            assert all(one.id != "memory.fragmentation" for one in device.findings)


@pytest.mark.parametrize(
    ("name", "mebibytes"),
    [("torchtitan-oom", 34_549.4), ("cross-entropy-vanilla", 1_000.0), ("cross-entropy-liger", 250.0)],
)
def test_peaks_are_those_that_others_have_checked(name: str, mebibytes: float) -> None:
    peak = told(RECORDINGS / f"snapshot-{name}.pickle").devices[0].peak.allocated_bytes

    assert peak / (1 << 20) == pytest.approx(mebibytes, abs=0.1)
