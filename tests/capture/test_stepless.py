"""Jobs in which no step is seen: a moment is recorded by the clock, and dropped where steps come after all."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from whystall.capture.config import CaptureConfig
from whystall.capture.stepless import SteplessWindow

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.alone


@pytest.fixture
def window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SteplessWindow:
    monkeypatch.setattr("whystall.capture.stepless._AFTER_S", 0.0)
    monkeypatch.setattr("whystall.capture.stepless._FIRST_LASTS_S", 0.1)
    monkeypatch.setattr("whystall.capture.stepless._LASTS_S", 0.2)
    return SteplessWindow(torch, CaptureConfig(folder=str(tmp_path)), tmp_path, lambda work: work(), lambda: True)


def works(window: SteplessWindow, seconds: float) -> None:
    """A loop of tensors, with somebody who looks now and then (here on its own thread)."""
    given, end = torch.randn(256, 256), time.monotonic() + seconds
    while time.monotonic() < end:
        given @ given
        window.look()


def test_a_moment_of_the_loop_is_recorded(window: SteplessWindow, tmp_path: Path) -> None:
    works(window, 5.0)  # torch imports its compiler first
    [name] = window.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with gzip.open(tmp_path / name) as file:
        at = [event["ts"] for event in json.load(file)["traceEvents"] if event.get("name") == "aten::mm"]
    assert len(at) > 100
    assert 0.1e6 < max(at) - min(at) < 4e6
    assert window.close() == []


def test_steps_that_come_after_all_drop_it(window: SteplessWindow, tmp_path: Path) -> None:
    works(window, 2.0)
    window.discard()
    assert window.close() == []
    assert not list(tmp_path.iterdir())


def test_a_process_beside_one_that_steps_tells_nothing(window: SteplessWindow, tmp_path: Path) -> None:
    works(window, 5.0)
    (tmp_path / "rank0.samples.jsonl").write_text(json.dumps({}))
    assert window.close() == []
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.samples.jsonl"]


def test_a_job_that_profiles_itself_is_left_alone(window: SteplessWindow, tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        works(window, 1.0)
    assert len(profiler.events()) > 100
    assert window.close() == []


def test_a_profiler_of_the_jobs_own_ends_it_for_good(window: SteplessWindow, tmp_path: Path) -> None:
    until = time.monotonic() + 60.0
    while not window.running and time.monotonic() < until:
        works(window, 0.05)
    assert window.running
    window.make_room()
    assert not window.running
    works(window, 0.5)
    assert window.close() == []
    assert not list(tmp_path.iterdir())


def test_an_open_window_that_is_dropped_writes_nothing(
    window: SteplessWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whystall.capture.stepless._FIRST_LASTS_S", 60.0)
    written: list[str] = []
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", lambda _, path: written.append(path))
    until = time.monotonic() + 60.0
    while not window.running and time.monotonic() < until:
        works(window, 0.05)
    window.discard()
    assert window.close() == written == []
    assert not list(tmp_path.iterdir())


def test_a_longer_window_follows_a_short_one_unless_it_would_hold_the_job_up(
    window: SteplessWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lasted(seconds: float) -> float:
        works(window, seconds)
        [name] = window.close()
        with gzip.open(tmp_path / name) as file:
            at = [event["ts"] for event in json.load(file)["traceEvents"] if event.get("name") == "aten::mm"]
        (tmp_path / name).unlink()
        return float(max(at) - min(at)) / 1e6

    monkeypatch.setattr("whystall.capture.stepless._LASTS_S", 1.0)
    assert lasted(8.0) > 0.5
    monkeypatch.setattr("whystall.capture.stepless._MOST_HELD_S", 1e-6)
    window = SteplessWindow(torch, CaptureConfig(folder=str(tmp_path)), tmp_path, lambda work: work(), lambda: True)
    assert lasted(4.0) < 0.5
