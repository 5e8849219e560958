"""While a CUDA graph is recorded nothing of ours touches the device: one that is disturbed is lost to the job."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import whystall
from whystall.capture.config import CaptureConfig
from whystall.capture.moments import captures_graph
from whystall.capture.stepless import SteplessWindow

torch = pytest.importorskip("torch")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Says whether a graph is recorded, to all that ask."""
    now = SimpleNamespace(capturing=False)
    monkeypatch.setattr("whystall.capture.moments.captures_graph", lambda _: now.capturing)
    return now


def test_a_device_that_is_not_in_use_is_not_asked() -> None:
    def asked() -> bool:
        raise AssertionError

    cuda: dict[str, Any] = {"is_initialized": lambda: False, "is_current_stream_capturing": asked}
    assert not captures_graph(SimpleNamespace(cuda=SimpleNamespace(**cuda)))
    for capturing in (False, True):
        cuda = {"is_initialized": lambda: True, "is_current_stream_capturing": lambda said=capturing: said}
        assert captures_graph(SimpleNamespace(cuda=SimpleNamespace(**cuda))) is capturing


def test_a_step_that_a_graph_records_is_no_step(recorded: SimpleNamespace, tmp_path: Path) -> None:
    with whystall.profile(output=str(tmp_path / "run")) as watched:
        for step in range(12):
            recorded.capturing = step in (4, 5)
            watched.step()
    rows = [
        line for line in (tmp_path / "run" / "rank0.samples.jsonl").read_text().splitlines() if line.startswith("[")
    ]
    assert len(rows) == 12 - 2 - 1  # the first call begins the first step


def test_a_window_by_the_clock_waits_for_the_graphs_end(
    recorded: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whystall.capture.stepless._AFTER_S", 0.0)
    monkeypatch.setattr("whystall.capture.stepless._FIRST_LASTS_S", 0.05)
    window = SteplessWindow(torch, CaptureConfig(folder=str(tmp_path)), tmp_path, lambda work: work(), lambda: True)

    def looked(until: bool) -> bool:
        """Whether the window comes to be open, or shut, within some time."""
        end = time.monotonic() + 60.0
        while window.running is not until and time.monotonic() < end:
            torch.ones(8).sum()
            window.look()
        return window.running is until

    recorded.capturing = True
    for _ in range(200):
        window.look()
        time.sleep(0.001)
    assert not window.running
    recorded.capturing = False
    assert looked(until=True)
    recorded.capturing = True
    time.sleep(0.1)
    for _ in range(200):
        window.look()
        time.sleep(0.001)
    assert window.running
    recorded.capturing = False
    assert looked(until=False)
    window.discard()
