"""Nothing begins or ends within a backward pass: a profiler that did crashed the job."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.capture.conftest import Jobs

from whystall.capture.config import CaptureConfig
from whystall.capture.moments import in_backward
from whystall.capture.stepless import SteplessWindow
from whystall.capture.steps import StepFinder

torch = pytest.importorskip("torch")

# Each parameter has an optimizer of its own that steps as soon as its gradient is there; two micro-batches a step of
# the last one's.
IN_HOOKS = """
import torch

model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizers = {one: torch.optim.AdamW([one], lr=1e-3) for one in model.parameters()}

def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()

for one in model.parameters():
    one.register_post_accumulate_grad_hook(step)
for _ in range(120):
    model(torch.randn(64, 256)).square().mean().backward()
"""


def test_optimizers_that_step_in_hooks_of_the_backward_pass(jobs: Jobs) -> None:
    (jobs.home / "job.py").write_text(IN_HOOKS)
    ran = jobs.whystall("job.py")
    assert ran.code == 0, ran.stderr
    assert len(ran.steps()) == 120 - 1  # the first step's beginning is not known
    with gzip.open(ran.folder / "rank0.trace.json.gz") as packed:
        trace = json.load(packed)["traceEvents"]
    steps = [event for event in trace if event.get("name", "").startswith("ProfilerStep#")]
    assert len(steps) >= 3
    for step in steps:  # whole ones: all operators of a step lie in it
        inside = [
            event for event in trace
            if event.get("name") == "aten::addmm" and step["ts"] <= event["ts"] < step["ts"] + step["dur"]
        ]  # fmt: skip
        assert len(inside) == 4


def test_of_optimizers_in_a_backward_pass_and_outside_the_one_outside_counts() -> None:
    finder = StepFinder()
    finder.any_optimizer = lambda: True
    ended = []
    for step in range(10):
        finder.optimizer_steps_in_backward()
        if finder.backward_passes():
            ended.append((step, "backward"))
        if finder.optimizer_steps(7):
            ended.append((step, "optimizer"))
    assert ended == [(0, "backward"), *((step, "optimizer") for step in range(10))]
    assert not finder.backward_passes()


def test_micro_batches_are_no_steps_once_an_optimizer_outside_has_been_heard() -> None:
    """Some parameters' optimizers step in each of four passes, another's outside; two were made, so that one waits."""
    finder = StepFinder()
    finder.several_optimizers = finder.any_optimizer = lambda: True
    ended = 0
    for _ in range(20):
        for _ in range(4):
            finder.optimizer_steps_in_backward()
            ended += finder.backward_passes()
        ended += finder.optimizer_steps(7)
    assert 20 - 8 <= ended <= 20 + 3  # the first four passes, and those until the one outside is known to be alone


def test_a_window_by_the_clock_waits_for_the_passes_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.capture.stepless._AFTER_S", 0.0)
    monkeypatch.setattr("whystall.capture.stepless._FIRST_LASTS_S", 0.02)
    window = SteplessWindow(torch, CaptureConfig(folder=str(tmp_path)), tmp_path, lambda work: work(), lambda: True)
    states: list[bool] = []

    class Watched(torch.autograd.Function):  # type: ignore[name-defined]
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            assert in_backward(torch)
            was = window.running
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                window.look()
            states.append(window.running is was)
            return gradient

    def differentiate() -> None:
        Watched.apply(torch.ones(2, requires_grad=True)).sum().backward()

    for until in (True, False):
        for _ in range(3):
            differentiate()
        end = time.monotonic() + 60.0
        while window.running is not until and time.monotonic() < end:
            window.look()
        assert window.running is until
    assert all(states)
    assert len(states) == 6
    window.discard()
