"""Scopes that a window left open: no other window begins before they close, or the process crashes later."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from whystall.capture import open_scopes
from whystall.capture.config import CaptureConfig, Schedule
from whystall.capture.open_scopes import (
    jobs_scope_is_left_open,
    keep_in_mind,
    one_is_left_open,
    within_an_operator,
)
from whystall.capture.recorder import Recorder
from whystall.capture.recording import Recording
from whystall.capture.stepless import SteplessWindow
from whystall.capture.windows import Action

torch = pytest.importorskip("torch")
JOBS = Path(__file__).parent / "jobs"


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    open_scopes._left_open.clear()
    yield
    open_scopes._left_open.clear()


@contextmanager
def held(name: str) -> Iterator[None]:
    with torch.profiler.record_function(name):
        yield


@pytest.mark.parametrize("written", [True, False])
def test_scopes_that_had_not_ended_are_known(tmp_path: Path, *, written: bool) -> None:
    recorder = Recorder(torch, CaptureConfig(folder=str(tmp_path)), tmp_path)
    recorder.start_at_once()
    with torch.profiler.record_function("ended \\"):
        torch.ones(2)
    with torch.profiler.record_function("epoch 3"):
        recorder.stop() if written else recorder.drop()
        assert open_scopes._left_open == {"epoch 3"}
    assert one_is_left_open()
    assert jobs_scope_is_left_open()


@pytest.mark.parametrize(("every", "left"), [(1, set()), (4, {"epoch"})])
def test_a_scope_that_each_step_has_ends_with_the_next_one(tmp_path: Path, every: int, left: set[str]) -> None:
    """The window ends within the scope of a step, or within that of an epoch which began in it."""
    config = CaptureConfig(folder=str(tmp_path), schedule=Schedule(warmup=1, active=5))
    recorder, name = Recorder(torch, config, tmp_path), "step" if every == 1 else "epoch"
    recorder.start()
    scope: Any = None
    for step in range(6):
        if step % every == 0:
            if scope is not None:
                scope.__exit__(None, None, None)
            scope = torch.profiler.record_function(name)
            scope.__enter__()
        torch.ones(2) + 1
        recorder.mark()
        if every == 1 and step < 5:
            scope.__exit__(None, None, None)
            scope = None
    recorder.stop(whole=True)
    assert {one for one in open_scopes._left_open if not one.startswith("ProfilerStep")} == left
    if scope is not None:
        scope.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", False),
        ("Optimizer.step#AdamW.step", False),
        ("aten::mm", False),
        ("DistributedDataParallel.forward", False),
        ("model_inference", True),
        ("Optimizing", True),
    ],
)
def test_scopes_of_torchs_calls_end_before_a_step(name: str, *, jobs: bool) -> None:
    keep_in_mind({name})
    assert one_is_left_open()
    assert jobs_scope_is_left_open() is jobs


def test_no_window_by_the_clock_follows_one_that_left_a_scope_open(tmp_path: Path) -> None:
    window = SteplessWindow(torch, CaptureConfig(folder=str(tmp_path)), tmp_path, lambda work: work(), lambda: True)
    window._begin()
    assert window.running
    with held("a batch"):
        window._end()
    window._begin()
    assert not window.running
    window.discard()


def test_no_window_by_the_clock_begins_or_ends_within_an_operator(tmp_path: Path) -> None:
    window = SteplessWindow(torch, CaptureConfig(folder=str(tmp_path)), tmp_path, lambda work: work(), lambda: True)
    seen: list[bool] = []

    class Within(torch.autograd.Function):  # type: ignore[name-defined]
        @staticmethod
        def forward(ctx: Any, given: Any) -> Any:
            (window._end if window.running else window._begin)()
            seen.append(window.running)
            return given * 2

    Within.apply(torch.ones(2))
    window._begin()
    Within.apply(torch.ones(2))
    assert seen == [False, True]
    window.discard()
    assert not within_an_operator(torch, sys._getframe())


def test_no_window_of_steps_follows_one_that_left_a_scope_of_the_jobs_open() -> None:
    notes: list[str] = []
    recording = Recording(torch, CaptureConfig(folder="", schedule=Schedule()), Path(), notes.append)
    keep_in_mind({"Optimizer.step#SGD.step"})
    recording.act(Action.START)
    assert recording.running
    recording.recorder.drop()
    keep_in_mind({"an epoch"})
    recording.act(Action.START)
    assert not recording.running
    assert notes == ["no further windows: a scope of the job's own (record_function) was open as one ended"]


def test_windows_one_after_another_do_no_harm_to_scopes_across_them(tmp_path: Path) -> None:
    """Where a second window begins too early the process ends by a segmentation fault."""
    result = subprocess.run(
        [sys.executable, str(JOBS / "scopes.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "4096"},  # memory that is freed is gone at once
        timeout=300,
    )
    assert (result.returncode, result.stdout.strip()) == (0, "done"), result.stderr[-2000:]
