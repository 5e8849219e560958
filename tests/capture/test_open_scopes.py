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
from whystall.capture.open_scopes import note_open_scopes, scopes_are_left_open, within_an_operator
from whystall.capture.recording import Recording
from whystall.capture.stepless import SteplessWindow

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


def test_a_scope_that_was_open_counts_until_it_closes() -> None:
    with torch.profiler.record_function("before"):
        pass
    note_open_scopes(torch)
    assert not scopes_are_left_open()
    with held("outer"):
        with held("inner"):
            note_open_scopes(torch)
            assert scopes_are_left_open()
        assert scopes_are_left_open()
    assert not scopes_are_left_open()


def test_no_window_by_the_clock_begins_in_a_scope_that_the_last_one_left_open(tmp_path: Path) -> None:
    window = SteplessWindow(torch, CaptureConfig(folder=str(tmp_path)), tmp_path, lambda work: work(), lambda: True)
    window._begin()
    assert window.running
    with held("a batch"):
        window._end()
        assert not window.running
        window._begin()
        assert not window.running
    window._begin()
    assert window.running
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


def test_a_window_of_steps_waits_for_the_scope() -> None:
    recording = Recording(torch, CaptureConfig(folder="", schedule=Schedule()), Path(), lambda _: None)
    assert recording._may_begin()
    with held("an epoch"):
        note_open_scopes(torch)
        assert not recording._may_begin()
    recording._looks_again_s = 0.0
    assert recording._may_begin()


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
