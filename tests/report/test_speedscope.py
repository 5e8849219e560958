"""Speedscope files: nested and in order as the format asks, with every event's own time."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whystall
from whystall.report.speedscope import write_speedscope
from whystall.testing import TraceBuilder, trace
from whystall.trace.model import Trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"
CATEGORIES = {
    "cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy", "gpu_memset",
}  # fmt: skip


def written(recorded: Trace) -> dict[str, Any]:
    stream = io.BytesIO()
    write_speedscope(recorded, stream)
    found: dict[str, Any] = json.loads(stream.getvalue())
    return found


def closed(profile: dict[str, Any], frames: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    """Begin, end and name of all that a chart holds; fails where it is not nested or goes back in time."""
    open_: list[tuple[int, int]] = []
    out = []
    last = profile["startValue"]
    for event in profile["events"]:
        assert last <= event["at"] <= profile["endValue"]
        last = event["at"]
        if event["type"] == "O":
            open_.append((event["at"], event["frame"]))
        else:
            begin, frame = open_.pop()
            assert frame == event["frame"]
            out.append((begin, event["at"], str(frames[frame]["name"])))
    assert not open_
    return out


def test_every_event_of_a_real_trace_is_there_with_its_own_time() -> None:
    path = TRACES / "bert-small-h100.json.gz"
    found = written(whystall.load(path))
    frames = found["shared"]["frames"]
    told = [row for profile in found["profiles"] for row in closed(profile, frames)]
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    raw = [event for event in events if event.get("ph") == "X" and event.get("cat") in CATEGORIES]
    assert len(told) == len(raw)
    assert sum(end - begin for begin, end, _ in told) == pytest.approx(
        sum(event["dur"] * 1000 for event in raw), rel=1e-6
    )


def test_python_frames_have_file_and_line() -> None:
    built = trace().python("train.py(27): step", at=0, lasts=5_000).operator("aten::mm", at=1_000, lasts=2_000)
    found = written(built.load())
    assert {"name": "step", "file": "train.py", "line": 27} in found["shared"]["frames"]
    (profile,) = found["profiles"]
    assert closed(profile, found["shared"]["frames"]) == [(1_000, 3_000, "aten::mm"), (0, 5_000, "step")]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), min_size=1, max_size=12))
def test_whatever_overlaps_is_nested(spans: list[tuple[int, int]]) -> None:
    built: TraceBuilder = trace()
    for number, (at, lasts) in enumerate(spans):
        built.event("cpu_op", f"op{number}", at=at * 1_000, lasts=lasts * 1_000)
        built.kernel(f"kernel{number}", at=at * 1_000, lasts=lasts * 1_000)
    found = written(built.load())
    for profile in found["profiles"]:
        told = closed(profile, found["shared"]["frames"])
        assert len(told) == len(spans)
        assert sorted(begin for begin, _, _ in told) == sorted(
            1_000 * (at - min(at for at, _ in spans)) for at, _ in spans
        )


def test_the_same_trace_gives_the_same_bytes_packed_or_not() -> None:
    recorded = whystall.load(TRACES / "bert-small-h100.json.gz")
    plain, packed = io.BytesIO(), io.BytesIO()
    write_speedscope(recorded, plain)
    write_speedscope(recorded, packed, compress=True)
    assert gzip.decompress(packed.getvalue()) == plain.getvalue()
