"""Several windows of a rank are its steps, however many ranks there are and whoever reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fleet.ranks import rank_trace
from tests.fleet.test_many import Here

import whystall
from whystall.fleet import many, summarise
from whystall.fleet.engines import Done, Work
from whystall.fleet.engines.machine import needed_bytes
from whystall.fleet.inputs import find_files
from whystall.fleet.many import Fleet, summarise_all
from whystall.fleet.summarise import Manner, Task, Window
from whystall.trace.load import load_traces
from whystall.trace.recordings import read_recordings
from whystall.view.recorded import Recorded

SECOND = 1_000_000_000
PARTS = (3, 3, 4)
STEPS = [f"ProfilerStep#{number}" for number in range(sum(PARTS))]
MANY = 10
LATE = 2


@pytest.fixture(autouse=True)
def _many_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are many from ten on, more than are looked at in depth, which takes half the time of twenty."""
    monkeypatch.setattr("whystall.fleet.inputs.FEW_RANKS", MANY - 1)


def in_windows(folder: Path, world: int) -> Path:
    """A job of ten steps in three windows, a second apart; one rank is late in all of them."""
    folder.mkdir()
    for window, steps in enumerate(PARTS):
        for rank in range(world):
            built = rank_trace(
                rank,
                world,
                late_ns=200_000 if rank == LATE else 0,
                clock_ns=window * SECOND + 700 * rank,
                steps=steps,
                first=sum(PARTS[:window]),
            )
            built.write(folder / f"rank{rank}.part{window}.json")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_windows(tmp_path_factory.mktemp("windows") / "job", MANY)


@pytest.fixture(scope="module")
def usual(folder: Path) -> str:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("whystall.fleet.inputs.FEW_RANKS", MANY - 1)
        return whystall.render(whystall.analyze(folder, cache=False, workers=2), "json")


def steps_of(report: whystall.Report) -> dict[int, list[str | None]]:
    return {device.rank: [step.name for step in device.steps] for device in report.devices}


def summarised(folder: Path, engine: Any = None, **options: Any) -> Fleet:
    options = {"cache": None} | options
    return summarise_all(find_files([folder], []), Manner(), engine or Here(), **options)


@pytest.mark.parametrize("world", [4, MANY])
def test_many_ranks_say_what_few_say(world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = in_windows(tmp_path / "job", world)
    one_by_one = whystall.analyze(folder, cache=False, engine="local", workers=2)
    monkeypatch.setattr("whystall.fleet.inputs.FEW_RANKS", world)
    together = whystall.analyze(folder, cache=False)
    assert any("each summarised by itself" in text for text in one_by_one.source.warnings) is (world == MANY)
    assert not any("summarised" in text for text in together.source.warnings)
    assert one_by_one.devices == together.devices
    assert one_by_one.ranks == together.ranks
    assert one_by_one.source.events == together.source.events
    assert one_by_one.verdict.cause == together.verdict.cause == "communication.straggler"
    assert one_by_one.findings[0].scope.ranks == together.findings[0].scope.ranks == [LATE]
    assert steps_of(one_by_one) == dict.fromkeys(range(world), STEPS)
    assert [(row.last, row.meetings) for row in one_by_one.ranks] == [
        (len(STEPS) if rank == LATE else 0, len(STEPS)) for rank in range(world)
    ]


def test_windows_that_are_joined_are_as_small_as_one_recording(tmp_path: Path) -> None:
    """Ten steps of a rank in one file and in three: what travels is the same but for the longer name."""
    whole = rank_trace(0, 2, steps=sum(PARTS)).write(tmp_path / "whole.json")
    (at_once,) = find_files([whole], [])
    folder = in_windows(tmp_path / "job", 2)
    parts = [file for file in find_files([folder], []) if Path(file.address).name.startswith("rank0")]
    windows = [Window(file, 0, 0) for file in parts]
    sizes = [
        len(summarise.summarise(msgspec.msgpack.encode(Task(of=of, manner=Manner())))) for of in (at_once, windows)
    ]
    assert len(windows) == len(PARTS)
    assert sizes[1] < sizes[0] * 1.2


def test_nothing_is_told_as_left_out(usual: str) -> None:
    assert "left out" not in usual
    assert "rank9.part0.json + rank9.part1.json + rank9.part2.json" in usual


@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 3}, {"engine": "ray", "workers": 2}])
def test_neither_engine_nor_workers_nor_the_order_of_names_changes_anything(
    folder: Path, usual: str, options: dict[str, Any]
) -> None:
    if options.get("engine") == "ray":
        pytest.importorskip("ray")
    paths = sorted(folder.iterdir(), key=lambda path: path.name[::-1])
    assert whystall.render(whystall.analyze(paths, cache=False, **options), "json") == usual


def test_the_order_in_which_windows_are_done_is_nothing(folder: Path) -> None:
    forwards, backwards = (summarised(folder, Here(backwards=way)) for way in (False, True))
    assert forwards.candidates == backwards.candidates
    assert forwards.windows == backwards.windows


def alone_in_between(folder: Path, rank: int, world: int) -> Path:
    """The folder with one rank recorded once only, between the first and the second window of the others."""
    for part in range(len(PARTS)):
        (folder / f"rank{rank}.part{part}.json").unlink()
    rank_trace(rank, world, clock_ns=SECOND // 2).write(folder / f"rank{rank}.json")
    return folder


def test_a_rank_that_was_recorded_at_another_time_has_its_own_steps(tmp_path: Path) -> None:
    folder = alone_in_between(in_windows(tmp_path / "job", 5), 3, 5)
    one_by_one = whystall.analyze(folder, cache=False, engine="local", workers=1)
    assert one_by_one.devices == whystall.analyze(folder, cache=False).devices
    assert steps_of(one_by_one) == {0: STEPS, 1: STEPS, 2: STEPS, 3: STEPS[:3], 4: STEPS}


def test_of_a_watched_run_the_latest_window_counts(folder: Path) -> None:
    found = summarised(folder, windows=False)
    assert [[step.name for step in one.devices[0].steps] for one in found.candidates] == [STEPS[6:]] * MANY
    assert any("left out: rank0.part0.json, rank0.part1.json" in note for note in found.notes)


def test_windows_that_do_not_fit_in_memory_are_said_and_left_out_of_all_ranks_alike(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [[(folder / f"rank{rank}.part{part}.json").stat().st_size for part in (1, 2)] for rank in range(MANY)]
    largest = max(map(sum, sizes))
    monkeypatch.setattr(many, "free_bytes", lambda: needed_bytes(largest))
    found = summarised(folder)
    assert [[step.name for step in one.devices[0].steps] for one in found.candidates] == [STEPS[3:]] * MANY
    assert "of 3 windows of a rank the latest 2 are analysed: more do not fit in memory together" in found.notes
    monkeypatch.setattr(many, "free_bytes", lambda: needed_bytes(largest) - 1)
    found = summarised(folder)
    assert [[step.name for step in one.devices[0].steps] for one in found.candidates] == [STEPS[6:]] * MANY


class Losing(Here):
    """An engine on whose second round a file is gone."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.rounds = 0

    def map(self, work: Sequence[Work]) -> Iterator[Done]:
        self.rounds += 1
        if self.rounds == 2:
            self.path.unlink()
        return super().map(work)


def test_a_rank_of_which_a_window_is_gone_meanwhile_is_named_and_left_out(tmp_path: Path) -> None:
    folder = in_windows(tmp_path / "job", 3)
    found = summarised(folder, Losing(folder / "rank1.part1.json"))
    assert [one.rank for one in found.candidates] == [0, 2]
    assert any("rank1.part1.json" in failure for failure in found.failures)
    assert any("1 of them has no recording here: 1" in note for note in found.notes)


def test_what_is_summarised_together_is_kept_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = in_windows(tmp_path / "job", 3)
    first = summarised(folder, cache=tmp_path / "kept")
    read: list[str] = []

    def load(path: Path, **options: Any) -> list[whystall.Trace]:
        read.append(path.name)
        return load_traces(path, **options)

    monkeypatch.setattr(summarise, "load_traces", load)
    assert summarised(folder, cache=tmp_path / "kept").candidates == first.candidates
    assert read == []
    rank_trace(1, 3, clock_ns=2 * SECOND + 700, steps=2, first=6).write(folder / "rank1.part2.json")
    again = summarised(folder, cache=tmp_path / "kept")
    assert read[0] == "rank1.part2.json"
    assert [step.name for step in again.candidates[1].devices[0].steps] == STEPS[:8]


def test_progress_ends_with_all_bytes_read(tmp_path: Path) -> None:
    folder = in_windows(tmp_path / "job", 3)
    told: list[tuple[int, int | None]] = []
    summarised(folder, progress=lambda done, whole: told.append((done, whole)))
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert told[-1] == (2 * size, 2 * size)
    assert told == sorted(told)


@pytest.mark.parametrize("options", [{}, {"engine": "local", "workers": 1}])
def test_the_recording_of_a_rank_is_found_again_whole(options: dict[str, Any], tmp_path: Path) -> None:
    folder = alone_in_between(in_windows(tmp_path / "job", 3), 1, 3)
    recorded = Recorded([str(folder)], whystall.analyze(folder, cache=False, **options), cache=False)
    whole = read_recordings(folder, cache=False)
    for rank, trace, steps in zip(whole.ranks, whole.traces, (STEPS, STEPS[:3], STEPS), strict=True):
        found = recorded.trace_of(rank)
        assert found.steps["name"].to_list() == steps
        assert found.device_events.equals(trace.device_events)
    first, later = (recorded.trace_of(rank).device_events["ts_ns"].min() for rank in (0, 1))
    assert isinstance(first, int)
    assert isinstance(later, int)
    # What nobody recorded is cut out of this rank's time as well.
    assert 0 < later - first < SECOND // 4
