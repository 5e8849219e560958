"""Windows of one process are one recording: what they say together is what one window over all steps says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whystall
from whystall.report.schema import Report
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import EPOCH_NS
from whystall.trace.load import load_trace
from whystall.trace.model import TABLES, Trace
from whystall.trace.readers.registry import READERS
from whystall.trace.windows import as_one

STEP = 1_000_000
GAP = 7_000_000_000


def step(built: TraceBuilder, number: int, begin: int, *, rank: int) -> None:
    """Python, a module, a forward and a backward operator, three launches, a wait, a collective; some vary by step."""
    built.step(number, at=begin, lasts=STEP)
    built.python("train.py(7): train", at=begin + 1_000, lasts=980_000)
    built.python("nn.Module: Net_0", at=begin + 2_000, lasts=400_000)
    built.operator(
        "aten::linear", at=begin + 5_000, lasts=300_000, **{"Sequence number": number, "External id": 100 + number}
    )
    built.operator("aten::addmm", at=begin + 6_000, lasts=200_000)
    built.launch("gemm", at=begin + 10_000, runs_at=begin + 20_000, lasts=300_000 + 1_000 * number)
    built.launch("relu", at=begin + 30_000, runs_at=begin + 330_000, lasts=50_000)
    built.operator(
        "AddmmBackward0", at=begin + 410_000, lasts=100_000, thread=2, **{"Sequence number": number, "Fwd thread id": 1}
    )
    if number % 2:
        built.operator("aten::item", at=begin + 520_000, lasts=50_000)
    built.kernel(
        "ncclDevKernel_AllReduce_Sum_f32", at=begin + 500_000 + 10_000 * rank, lasts=200_000 - 10_000 * rank, stream=9
    )
    built.runtime("cudaDeviceSynchronize", at=begin + 600_000, lasts=250_000)
    built.memory(at=begin + 650_000, size=1_000, allocated=5_000 + number, reserved=10_000)


def recording(numbers: range, *, begin: int = 0, rank: int | None = 0, process_offset: int = 0) -> TraceBuilder:
    stated: dict[str, Any] = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    built = trace(deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], **stated)
    for place, number in enumerate(numbers):
        step(built, number, begin + place * STEP, rank=rank or 0)
    for event in built.events if process_offset else ():
        if isinstance(event["tid"], int) and event["cat"] not in ("kernel", "gpu_memcpy"):
            event["pid"] += process_offset
    return built


def said(report: Report) -> dict[str, Any]:
    """All that a report says but where it is from and of when."""
    import msgspec

    raw: dict[str, Any] = msgspec.to_builtins(report, enc_hook=float)
    for name in ("source", "timelines"):
        del raw[name]
    return raw


def split(folder: Path, *, rank: int | None, parts: tuple[range, ...], gaps: tuple[int, ...], name: str) -> None:
    begin = 0
    for number, (numbers, gap) in enumerate(zip(parts, gaps, strict=True)):
        begin += gap
        recording(numbers, begin=begin, rank=rank).write(folder / f"{name}.{number}.json")
        begin += len(numbers) * STEP


def test_two_windows_are_one_recording_row_for_row(tmp_path: Path) -> None:
    """Links, nesting, collectives, steps: of each table what one recording of all has, but for ids counted anew."""
    whole = recording(range(3, 11)).load()
    split(tmp_path, rank=0, parts=(range(3, 6), range(6, 11)), gaps=(0, GAP), name="w")
    first, second = (load_trace(tmp_path / f"w.{number}.json", cache=False, readers=READERS) for number in range(2))
    joined = as_one([first, second], [0, -GAP])
    ids = {"correlation", "external_id", "id", "event_index", "wait_on_correlation"}
    for table in TABLES:
        one, other = getattr(whole, table), getattr(joined, table)
        columns = [column for column in one.columns if column not in ids]
        assert other.columns == one.columns, table
        assert other.select(columns).rows() == one.select(columns).rows(), table
    assert np.array_equal(nested(joined), nested(whole))
    assert joined.source.events == first.source.events + second.source.events


def nested(one: Trace) -> list[tuple[int, int]]:
    """Start and thread of all host events, in the order in which they are nested."""
    tables = [getattr(one, table) for table in ("operators", "annotations", "python_functions", "runtime_calls")]
    start, thread = (np.concatenate([table[column].to_numpy() for table in tables]) for column in ("ts_ns", "thread"))
    order = one.host_order
    return list(zip(thread[order].tolist(), start[order].tolist(), strict=True))


@pytest.mark.parametrize("rank", [None, 0])
def test_windows_say_what_one_recording_says(tmp_path: Path, rank: int | None) -> None:
    whole = whystall.analyze(recording(range(3, 13), rank=rank).load())
    folder = tmp_path / "split"
    folder.mkdir()
    split(folder, rank=rank, parts=(range(3, 6), range(6, 9), range(9, 13)), gaps=(0, GAP, GAP // 3), name="w")
    report = whystall.analyze(folder, cache=False)
    assert len(report.devices[0].steps) == 10
    assert said(report) == said(whole)
    assert report.source.warnings == whole.source.warnings
    assert [file.path for file in report.source.files] == ["w.0.json + w.1.json + w.2.json"]


def test_of_two_ranks_the_same_time_is_cut(tmp_path: Path) -> None:
    ranks = [recording(range(8), rank=rank).load() for rank in range(2)]
    for rank in range(2):
        split(tmp_path, rank=rank, parts=(range(4), range(4, 8)), gaps=(0, GAP), name=f"r{rank}")
    assert said(whystall.analyze(tmp_path, cache=False)) == said(whystall.analyze(ranks))


def test_the_order_of_files_changes_nothing(tmp_path: Path) -> None:
    split(tmp_path, rank=0, parts=(range(3), range(3, 6), range(6, 9)), gaps=(0, GAP, GAP), name="w")
    files = sorted(tmp_path.iterdir())
    reports = [said(whystall.analyze(list(order), cache=False)) for order in itertools.permutations(files)]
    assert all(report == reports[0] for report in reports)


@pytest.mark.parametrize(
    ("numbers", "process_offset"),
    [(range(3), 0), (range(2, 5), 0), (range(3, 6), 5)],
    ids=["again", "overlap", "other"],
)
def test_another_run_is_no_window(tmp_path: Path, numbers: range, process_offset: int) -> None:
    recording(range(3)).write(tmp_path / "a.json")
    recording(numbers, begin=GAP, process_offset=process_offset).write(tmp_path / "b.json")
    report = whystall.analyze(tmp_path, cache=False)
    assert [file.path for file in report.source.files] == ["b.json"]
    assert any("left out: a.json" in warning for warning in report.source.warnings)


def test_counters_of_windows_follow_each_other() -> None:
    """What was sampled before a window's first event or after its last would lie in another window."""
    windows = []
    for begin in (0, 10_000):
        built = trace().kernel("gemm", at=begin + 100, lasts=100)
        for at in (50, 100, 150, 200, 250):
            built.counter("SM", begin + at, at=begin + at)
        windows.append(built.load())
    joined = as_one(windows, [0, -9_900])
    assert (joined.counters["ts_ns"] - EPOCH_NS).to_list() == [100, 150, 200, 200, 250, 300]
    assert joined.counters["value"].to_list() == [100, 150, 200, 10_100, 10_150, 10_200]
