"""Logs that the installed torch writes, against its own counters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from whystall.compilation.read import read_account
from whystall.compilation.results import ProcessAccount

PROGRAM = """
import json
import torch

def printed(x, factor):
    y = x * factor
    print("step")
    return y + 1

class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.step = 0

    def forward(self, x):
        self.step += 1
        return self.layer(x) * self.step

def scaled(x):
    s = x.sum().item()
    return x * s

def below(x):
    x = x.cos()
    torch._dynamo.graph_break()
    return x + 1

def above(x):
    x = below(x)
    return x * 2

def failing(graph, inputs):
    raise RuntimeError("no backend")

first = torch.compile(printed, backend="aot_eager")
for factor in (1.5, 2.5):
    first(torch.ones(3), factor)
for size in (4, 5, 6):
    first(torch.ones(size), 2.5)
model = torch.compile(Counted(), backend="aot_eager")
for _ in range(10):
    model(torch.ones(2, 4)).sum().backward()
second = torch.compile(scaled, backend="aot_eager")
for size in (1, 2, 3):
    second(torch.ones(3) * size)
torch.compile(above, backend="aot_eager")(torch.ones(3))
try:
    torch.compile(lambda x: x.sin(), backend=failing)(torch.ones(2))
except Exception:
    pass
from torch._dynamo.utils import counters, compile_times
print("COUNTERS", json.dumps({name: dict(count) for name, count in counters.items()}))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProcessAccount, dict[str, Any]]:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    folder = tmp_path_factory.mktemp("job")
    (folder / "job.py").write_text(PROGRAM)
    environment = os.environ | {"TORCH_TRACE": str(folder / "logs"), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "job.py"], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    [line] = [line for line in ended.stdout.splitlines() if line.startswith("COUNTERS")]
    [found] = read_account([folder / "logs"]).processes
    return found, json.loads(line.removeprefix("COUNTERS"))


def line_of(text: str) -> int:
    [number] = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.strip() == text]
    return number


def test_every_break_of_torchs_counter_is_there(recorded: tuple[ProcessAccount, dict[str, Any]]) -> None:
    found, counters = recorded

    assert sum(one.times for one in found.breaks) == sum(counters["graph_break"].values())
    assert {one.place.line for one in found.breaks if one.place is not None} == {
        line_of('print("step")'),
        line_of("s = x.sum().item()"),
        line_of("torch._dynamo.graph_break()"),
    }
    reasons = {reason.split("\n")[0] for reason in counters["graph_break"]}
    assert {one.reason for one in found.breaks} == reasons


def test_every_frame_that_compiled_is_there(recorded: tuple[ProcessAccount, dict[str, Any]]) -> None:
    found, counters = recorded

    forward = [one for one in found.compiles if not one.backward]
    assert len([one for one in forward if one.failed is None]) == counters["frames"]["ok"]
    assert len(forward) == counters["frames"]["total"]
    names = {one.frame.function for one in found.compiles if one.frame is not None}
    assert {name for name in names if name.startswith("torch_dynamo_resume_in_")} == set(counters["resumes"])


def test_functions_around_a_break_resume_after_it(recorded: tuple[ProcessAccount, dict[str, Any]]) -> None:
    found, _ = recorded
    [below] = [one for one in found.breaks if one.reason == "Call to `torch._dynamo.graph_break()`"]

    assert below.place is not None
    assert below.place.function == "below"
    resumed = {f"torch_dynamo_resume_in_below_at_{line_of('torch._dynamo.graph_break()')}"}
    resumed |= {f"torch_dynamo_resume_in_above_at_{line_of('x = below(x)')}"}
    own = [one for one in found.compiles if one.frame is not None and one.frame.function in resumed]
    assert below.resumes == len(own) == 2
    assert below.resumes_ns == sum(one.total_ns for one in own)


def test_recompiles_and_the_limit(recorded: tuple[ProcessAccount, dict[str, Any]]) -> None:
    found, _ = recorded
    kinds = {(one.guard, one.kind): one for one in found.recompiles}

    counted = kinds["self.step == 0", "an attribute's value"]
    assert (counted.times, counted.versions, counted.at_limit) == (7, 8, True)
    assert str(counted.line) == f"job.py:{line_of('self.step += 1')}"
    assert kinds["factor == 1.5", "a float's value"].times == 1
    assert kinds["___stack0 == 3.0", "a scalar from before a graph break"].times == 1


def test_the_failure_and_the_lazy_backward_graphs(recorded: tuple[ProcessAccount, dict[str, Any]]) -> None:
    found, _ = recorded

    [failure] = found.failures
    assert (failure.kind, failure.times) == ("BackendCompilerFailed", 1)
    assert len([one for one in found.compiles if one.backward]) == 8
    assert found.torch is not None
    assert sum(one.total_ns for one in found.compiles) == found.total_ns == found.phases.total_ns
