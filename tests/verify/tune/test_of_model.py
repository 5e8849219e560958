"""Settings of a model: those that a run makes plausible, real runs with each of them, and what to write in the code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from whystall.verify.tune.advice import lines_to_change
from whystall.verify.tune.candidates import candidates, left_out
from whystall.verify.tune.measurer import Measurer
from whystall.verify.tune.results import Outcome, Seen, Settings

MODEL = {
    "class": "Net", "parameters": 10, "bytes": 40, "dtype": "float32", "device": "cpu", "convolutions": 2,
    "channels_last": False, "file": "train.py", "line": 7,
}  # fmt: skip
SEEN = Seen(shares={"forward": 0.3, "backward": 0.6}, models=[MODEL], bf16=True, threads=1)

JOB = """
import sys
import torch
from torch import nn
from torch.nn import functional as F

log = open(sys.argv[1], "w", buffering=1)
torch.manual_seed(0)
torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        made = self.first(x)
        self.layout = made.is_contiguous(memory_format=torch.channels_last)
        return self.last(made.relu().mean((2, 3)))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
call = model.forward if "unbound" in sys.argv else model
x, y = torch.randn(4, 3, 16, 16), torch.randint(2, (4,))
for step in range(60):
    out = call(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    told = ["out", out.dtype, "loss", loss.dtype, "now", torch.is_autocast_enabled("cpu")]
    print(*told, "layout", getattr(model, "layout", None), "weights", model.last.weight.dtype, file=log)
"""


def names(seen: Seen, settings: Settings | None = None) -> dict[str, object]:
    return {one.name: one.value for one in candidates(seen, settings or {}, None)}


def test_a_model_in_fp32_with_convolutions_gets_all_three() -> None:
    assert names(SEEN) == {"precision": "bf16", "compile": "default", "memory_format": "channels_last"}
    assert names(SEEN, {"precision": "bf16", "memory_format": "channels_last", "compile": "default"}) == {}


def test_what_the_steps_hardly_compute_is_left() -> None:
    waiting = replace(SEEN, shares={"input": 0.95})
    assert not {"precision", "memory_format", "compile"} & names(waiting).keys()
    because = {one.name: one.because for one in left_out(waiting, {}, [])}
    assert because["precision"] == because["compile"] == "the model takes 5.0% of the steps"


@pytest.mark.parametrize(
    ("changed", "name", "because"),
    [
        ({"autocast": True}, "precision", "the job uses autocast already"),
        ({"models": [MODEL | {"dtype": "bfloat16"}]}, "precision", "the model is in bfloat16"),
        ({"bf16": False}, "precision", "what the model runs on has no instructions for bfloat16"),
        ({"compiled": True}, "compile", "the job compiles already"),
        ({"models": [MODEL | {"convolutions": 0}]}, "memory_format", "no model has convolutions of pictures"),
        ({"models": [MODEL | {"channels_last": True}]}, "memory_format", "weights lie so already"),
        ({"models": []}, "compile", "no model of torch's was trained by an optimizer of torch's"),
    ],
)
def test_what_nothing_speaks_for_is_left_out_with_the_reason(
    changed: dict[str, object], name: str, because: str
) -> None:
    seen = replace(SEEN, **changed)
    assert name not in names(seen)
    assert {one.name: one.because for one in left_out(seen, {}, [])}[name] == because


def test_graphs_are_for_devices_and_what_compiles_long_follows_a_winner() -> None:
    on_gpu = replace(SEEN, devices=1)
    modes = [one.value for one in candidates(on_gpu, {}, None) if one.name == "compile"]
    assert modes == ["default", "reduce-overhead"]
    then = [one.value for one in candidates(on_gpu, {"compile": "default"}, None) if one.name == "compile"]
    assert then == ["reduce-overhead", "max-autotune"]


def test_the_lines_to_change() -> None:
    settings: Settings = {"memory_format": "channels_last", "compile": "reduce-overhead", "precision": "bf16"}
    layout, *others = lines_to_change(settings, SEEN)
    assert layout.startswith("before the optimizer is made (train.py:7): model = model.to(memory_format=torch.channels")
    assert others == [
        'before the optimizer is made (train.py:7): model = torch.compile(model, mode="reduce-overhead")',
        'around the forward pass and the loss: with torch.autocast("cpu", dtype=torch.bfloat16):',
    ]
    assert lines_to_change({"compile": "default"}, SEEN)[0].endswith("model = torch.compile(model)")


def run(tmp_path: Path, settings: Settings, *words: str) -> tuple[Outcome, str]:
    """A real run, and what it printed last."""
    pytest.importorskip("torch", reason="a real job runs")
    job, log = tmp_path / "job.py", tmp_path / "log"
    job.write_text(JOB)
    measurer = Measurer((sys.executable, str(job), str(log), *words), tmp_path / "tuning", steps=20)
    measurer.open(force=False)
    found = measurer(settings)
    return found, log.read_text().rpartition("\nout ")[2].strip()


def test_a_run_shows_its_model(tmp_path: Path) -> None:
    found, said = run(tmp_path, {})
    assert found.seen is not None
    (model,) = found.seen.models
    assert (model["class"], model["dtype"], model["device"], model["convolutions"]) == ("Net", "float32", "cpu", 1)
    assert model["parameters"] == 3 * 8 * 9 + 8 + 8 * 2 + 2
    assert model["channels_last"] is False
    assert "optim.SGD" in JOB.splitlines()[model["line"] - 1]
    assert not found.seen.autocast
    assert not found.seen.compiled
    assert said == "torch.float32 loss torch.float32 now False layout False weights torch.float32"


def test_precision_is_that_of_forward_pass_and_loss_alone(tmp_path: Path) -> None:
    found, said = run(tmp_path, {"precision": "bf16"})
    assert found.failed_because is None
    # The loss is among what autocast computes in fp32 on a CPU; between steps it is on, for the next forward pass.
    assert said == "torch.bfloat16 loss torch.float32 now True layout False weights torch.float32"


def test_convolutions_lie_by_channels(tmp_path: Path) -> None:
    found, said = run(tmp_path, {"memory_format": "channels_last"})
    assert found.failed_because is None
    assert found.seen is not None
    assert "layout True" in said


def test_a_model_is_compiled_in_place(tmp_path: Path) -> None:
    found, _ = run(tmp_path, {"compile": "default"})
    assert found.failed_because is None
    assert found.seen is not None
    assert found.seen.compiled


def test_a_model_that_cannot_be_compiled_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    found, _ = run(tmp_path, {"compile": "default"})
    assert found.step_s is None
    assert found.failed_because is not None
    assert "exit code 1: torch._inductor.exc.InductorError: InvalidCxxCompiler" in found.failed_because


def test_a_model_that_is_not_called_itself_is_not_compiled(tmp_path: Path) -> None:
    found, _ = run(tmp_path, {"compile": "default"}, "unbound")
    assert found.failed_because == (
        "compile could not be set: torch.compile compiled nothing of the model: it is not called itself"
    )
