"""Which of the files given are ranks, which are windows of one rank, and which are no part of the job."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import whystall
from whystall.errors import InputError, UsageError
from whystall.testing import TraceBuilder, trace

SECOND = 1_000_000_000


def recording(*, at: int = 0, steps: int = 3, rank: int | None = None) -> TraceBuilder:
    """Steps of 1 ms from an instant on; of a rank that the file states, or of none."""
    built = trace() if rank is None else trace(distributedInfo={"rank": rank, "world_size": 2})
    for number in range(steps):
        begin = at + number * 1_000_000
        built.operator("aten::mm", at=begin, lasts=20_000)
        built.launch("gemm", at=begin + 5_000, runs_at=begin + 12_000, lasts=900_000)
        built.step(number, at=begin, lasts=1_000_000)
    return built


def written(folder: Path, **builders: TraceBuilder) -> Path:
    for name, built in builders.items():
        built.write(folder / f"{name.replace('_', '.')}.json")
    return folder


def files(report: whystall.Report) -> list[tuple[str, int]]:
    return [(file.path, file.rank) for file in report.source.files]


def test_of_several_windows_of_one_rank_the_latest_is_diagnosed_and_the_others_are_named(tmp_path: Path) -> None:
    written(
        tmp_path,
        rank0_trace=recording(),
        rank0_window1_trace=recording(at=SECOND),
        rank0_window2_trace=recording(at=2 * SECOND),
    )
    report = whystall.analyze(tmp_path, cache=False)
    assert files(report) == [("rank0.window2.trace.json", 0)]
    (warning,) = report.source.warnings
    assert "rank0.window2.trace.json is diagnosed" in warning
    assert "left out: rank0.trace.json, rank0.window1.trace.json (analyze a file by itself" in warning


def test_windows_of_a_rank_that_only_the_file_states(tmp_path: Path) -> None:
    written(tmp_path, a=recording(at=SECOND, rank=1), b=recording(rank=1), c=recording(at=SECOND, rank=0))
    assert files(whystall.analyze(tmp_path, cache=False)) == [("c.json", 0), ("a.json", 1)]


def test_a_window_that_one_rank_alone_recorded_does_not_part_the_ranks(tmp_path: Path) -> None:
    written(
        tmp_path, rank0_trace=recording(), rank1_trace=recording(at=100_000), rank0_window1_trace=recording(at=SECOND)
    )
    report = whystall.analyze(tmp_path, cache=False)
    assert files(report) == [("rank0.trace.json", 0), ("rank1.trace.json", 1)]


def test_processes_that_say_the_same_rank_at_the_same_time_all_stay(tmp_path: Path) -> None:
    written(tmp_path, a_rank0=recording(), b_rank0=recording(at=100_000))
    report = whystall.analyze(tmp_path, cache=False)
    assert files(report) == [("a.rank0.json", 0), ("b.rank0.json", 1)]
    assert any("free number" in warning for warning in report.source.warnings)


def test_the_same_recording_twice_counts_once(tmp_path: Path) -> None:
    path = recording().write(tmp_path / "one.json")
    shutil.copy(path, tmp_path / "rank3.json")
    several: list[list[Path | whystall.Trace]] = [
        [path, path],
        [path, tmp_path / "rank3.json"],
        [path, whystall.load(path)],
    ]
    for given in several:
        report = whystall.analyze(given, cache=False)
        assert files(report) == [("one.json", 0)]
        assert any("holds the same recording as one.json: it counts once" in text for text in report.source.warnings)


def test_files_of_no_rank_and_of_different_times_are_ranks_with_a_warning(tmp_path: Path) -> None:
    written(tmp_path, before=recording(), after=recording(at=SECOND, steps=5))
    report = whystall.analyze(tmp_path, cache=False)
    assert report.source.ranks == [0, 1]
    (warning,) = [text for text in report.source.warnings if "no rank is stated" in text]
    assert "after.json, before.json" in warning
    assert "`whystall compare`" in warning


def test_files_of_no_rank_and_of_one_time_are_ranks_without_a_word(tmp_path: Path) -> None:
    written(tmp_path, a=recording(), b=recording(at=100_000))
    report = whystall.analyze(tmp_path, cache=False)
    assert report.source.ranks == [0, 1]
    assert report.source.warnings == []


@pytest.mark.parametrize(
    "events", ['{"traceEvents": []}', '{"traceEvents": [NAMES]}', '{"traceEvents": [NAMES, MARK]}']
)
def test_a_trace_without_events_is_no_recording(tmp_path: Path, events: str) -> None:
    names = '{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}'
    mark = '{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2.5}'
    (tmp_path / "empty.json").write_text(events.replace("NAMES", names).replace("MARK", mark))
    with pytest.raises(InputError, match=r"empty\.json: nothing was recorded, the trace holds no event of a job"):
        whystall.analyze(tmp_path / "empty.json", cache=False)
    recording().write(tmp_path / "whole.json")
    report = whystall.analyze(tmp_path, cache=False)
    assert files(report) == [("whole.json", 0)]
    assert any("empty.json: nothing was recorded" in warning for warning in report.source.warnings)


def test_nothing_given_and_an_unknown_format_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to analyze was given"):
        whystall.analyze([])
    report = whystall.analyze(recording().write(tmp_path / "one.json"), cache=False)
    with pytest.raises(UsageError, match="choose one of terminal, json, markdown, html"):
        whystall.render(report, "pdf")


def test_the_order_in_which_files_are_named_is_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path, **{f"rank{rank}": recording(rank=rank) for rank in (0, 1, 2)})
    paths = sorted(folder.glob("*.json"))
    forwards, backwards = (whystall.analyze(named, cache=False) for named in (paths, paths[::-1]))
    assert files(forwards) == files(backwards)
    assert [device.rank for device in backwards.devices] == [0, 1, 2]
    assert [finding.scope for finding in forwards.findings] == [finding.scope for finding in backwards.findings]
