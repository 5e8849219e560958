"""``whystall model --predict``: options, formats, and what it says of mistakes."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from whystall.model.prediction import simulator
from whystall.model.prediction.simulator import Simulator

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

pytest.importorskip("torch", reason="steps are simulated with torch")

FACTORIES = """
import torch
from torch import nn

def square(batch=4):
    return nn.Linear(512, 512, bias=False), torch.randn(batch, 512)

def wide(batch=4):
    return nn.Sequential(nn.Linear(65536, 64), nn.ReLU(), nn.Linear(64, 65536)), torch.randn(batch, 65536)

def deep(batch=512):
    parts = (nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4))
    return nn.Sequential(*parts), torch.randn(batch, 64)

def bare():
    return nn.Linear(8, 8)

def raising():
    raise KeyError("weights")
"""
BLOCKS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

def stack(batch=4):
    return nn.Sequential(*(Block() for _ in range(8))), torch.randn(batch, 64)
"""
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(scope="module")
def factories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("factories")
    (folder / "factories.py").write_text(FACTORIES)
    (folder / "blocks.py").write_text(BLOCKS)
    return folder


@pytest.fixture(scope="module")
def simulating() -> Iterator[Simulator]:
    """One process that simulates, for all tests: torch takes seconds to start."""
    with Simulator() as running:
        yield running


@pytest.fixture(autouse=True)
def in_an_empty_folder(factories: Path, simulating: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(factories)
    monkeypatch.setattr(simulator, "Simulator", lambda: contextlib.nullcontext(simulating))


def test_text(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a process that the command starts itself."""
    monkeypatch.setattr(simulator, "Simulator", Simulator)
    outcome = cli("model", "factories.py:square", "--predict", "--device", H100)

    assert outcome.code == 0, outcome.err
    assert "a training step on NVIDIA H100 80GB HBM3 holds" in outcome.out.replace("\n", " ")
    assert "in the optimizer phase" in outcome.out.replace("\n", " ")
    assert "262,144 parameters" in outcome.out
    assert "It fits, with" in outcome.out
    assert "assumed (what drivers commonly show)" in outcome.out
    assert outcome.err.startswith("next: whystall model factories.py:square --predict --remedies")
    assert all(len(line) <= 120 for line in outcome.out.splitlines())


def test_json(cli: Cli) -> None:
    outcome = cli("model", "factories.py:square", "--predict", "--json", "--batch", "8", "--optimizer", "sgd-momentum")
    found: dict[str, Any] = json.loads(outcome.out)
    weights = 512 * 512 * 4

    assert found["schema"] == "whystall.prediction/1"
    assert found["request"]["batch"] == 8
    optimizer = next(one for one in found["phases"] if one["phase"] == "optimizer")
    assert [optimizer["held"][kind] for kind in ("parameters", "gradients", "optimizer state")] == [weights] * 3
    assert optimizer["n_bytes"] == sum(optimizer["held"].values())
    assert found["peak_bytes"] == max(one["n_bytes"] for one in found["phases"])
    assert found["fit"] is None
    assert "--device" in found["unfit_because"]


def test_inference_has_no_gradients(cli: Cli) -> None:
    found = json.loads(cli("model", "factories.py:square", "--predict", "--infer", "--json").out)

    assert [one["phase"] for one in found["phases"]] == ["forward"]
    assert found["peak_bytes"] == 512 * 512 * 4 + 3 * 4 * 512 * 4  # weights, the input, and two outputs


def test_conventions_and_remedies_on_request(cli: Cli) -> None:
    outcome = cli("model", "factories.py:square", "--predict", "--conventions", "--remedies", "--device", H100)

    assert "ZeRO 2 (DeepSpeed's estimator)" in outcome.out
    assert "a fused optimizer (fused=True)" in outcome.out


def test_what_to_compute_again(cli: Cli) -> None:
    target = ("model", "factories.py:deep", "--predict", "--optimizer", "sgd")
    found = json.loads(cli(*target, "--remedies", "--json").out)
    row = found["recompute"][0]
    names = row["options"].removeprefix("--recompute ").strip("'")
    again = json.loads(cli(*target, "--recompute", names, "--json").out)

    assert again["peak_bytes"] == row["peak_bytes"] < found["peak_bytes"]
    text = cli(*target, "--remedies").out
    assert "Recompute instead of keeping" in text
    assert row["module"] in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("factories.py:square", "--checkpoint", "full"), 2, "--checkpoint belongs to --predict"),
        (("factories.py:square", "--recompute", "x"), 2, "--recompute belongs to --predict"),
        (("factories.py:deep", "--predict", "--recompute", "x"), 2, "no module to compute again is called 'x'"),
        (("factories.py:square", "--predict", "--ranks", "none"), 2, "--ranks wants a number"),
        (("factories.py:square", "--predict", "--limit", "8 bananas"), 2, "--limit wants a size such as 8GiB"),
        (("factories.py:square", "--limit", "8GiB"), 2, "--limit belongs to --predict"),
        (("factories.py:square", "--predict", "--effective-batch", "0"), 2, "--effective-batch wants a number"),
        (("factories.py:square", "--tensor-parallel", "2"), 2, "--tensor-parallel belongs to --predict"),
        (("factories.py:square", "--predict", "--fsdp", "wrap=much"), 2, "--fsdp wants such as wrap=model"),
        (("factories.py:square", "--predict", "--fsdp", "wrap=model"), 2, "add --strategy fsdp2"),
        (("factories.py:square", "--predict", "--sequence-parallel"), 2, "add --tensor-parallel 8"),
        (("factories.py:square", "--predict", "--pipeline-parallel", "2"), 2, "cannot be shared evenly by 2 stages"),
        (("factories.py:square", "--predict", "--devices", "H9000"), 2, "knows no 'H9000'"),
        (("factories.py:square", "--predict", "--devices", "--batch", "max"), 2, "--devices is a table of its own"),
        (("factories.py:square", "--predict", "--probe"), 2, "--probe goes with --batch max"),
        (("factories.py:square", "--predict", "--ranks", "4"), 2, "add --strategy"),
        (("factories.py:square", "--predict", "--device", "cuda"), 2, "knows no 'cuda'"),
        (("factories.py:square", "--predict", "--optimizer", "adamx"), 2, "no optimizer 'adamx'"),
        (("factories.py:bare", "--predict"), 2, "gives no inputs"),
        (("factories.py:raising", "--predict"), 3, "failed: KeyError: 'weights'"),
        (("nowhere.py:square", "--predict"), 3, "no such file"),
    ],
)
def test_mistakes(cli: Cli, arguments: tuple[str, ...], code: int, said: str) -> None:
    outcome = cli("model", *arguments)

    assert outcome.code == code
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""


def test_a_prediction_and_a_table_of_options_are_pages_too(cli: Cli, tmp_path: Path) -> None:
    page, options, plain = (tmp_path / name for name in ("fits.html", "options.html", "fits.txt"))
    predict = ("model", "factories.py:square", "--predict")
    assert cli(*predict, "--html", str(page), "-o", str(plain)).code == 0
    assert "<h1>factories.py:square: a training step on a CPU holds" in page.read_text()
    assert "held at the peak of" in page.read_text()
    assert plain.read_text().startswith("factories.py:square: a training step on a CPU holds")
    assert cli(*predict, "--devices", "NVIDIA H100 80GB HBM3", "-o", str(options)).code == 0
    assert "one device by default" in options.read_text()
    again = cli(*predict, "-o", str(page))
    assert (again.code, "exists" in again.err) == (2, True)


def test_a_traceback_of_the_users_own_on_request(cli: Cli) -> None:
    assert 'raise KeyError("weights")' in cli("model", "factories.py:raising", "--predict", "-v").err


def test_the_largest_batch_that_fits(cli: Cli) -> None:
    outcome = cli("model", "factories.py:wide", "--predict", "--device", "Tesla T4", "--batch", "max")
    assert outcome.code == 0
    assert re.search(r"The largest batch that fits is [\d,]+\.", outcome.out)
    assert "missing" in outcome.out
    assert "to spare" in outcome.out
    told = json.loads(
        cli("model", "factories.py:wide", "--predict", "--device", "Tesla T4", "--batch", "max", "--json").out
    )
    largest = told["request"]["batch"]
    assert [one["spare_bytes"] >= 0 for one in told["batches"]] == [one["batch"] <= largest for one in told["batches"]]


@pytest.mark.parametrize("options", [["--predict"], ["--predict", "--device", "cpu"]])
def test_a_largest_batch_wants_a_device(cli: Cli, options: list[str]) -> None:
    outcome = cli("model", "factories.py:square", *options, "--batch", "max")
    assert outcome.code == 2
    assert "name it by --device" in outcome.err


@pytest.mark.parametrize(("text", "n_bytes"), [("8GiB", 8 * 2**30), ("1.5 GB", 1_500_000_000), ("512B", 512)])
def test_sizes_of_limits(cli: Cli, text: str, n_bytes: int) -> None:
    outcome = cli("model", "factories.py:square", "--predict", "--limit", text, "--json")

    assert json.loads(outcome.out)["request"]["limit_bytes"] == n_bytes


def test_a_largest_batch_that_really_ran(cli: Cli) -> None:
    outcome = cli("model", "factories.py:square", "--predict", "--batch", "max", "--limit", "8MiB", "--probe")

    assert outcome.code == 0, outcome.err
    assert re.search(r"Really run, the largest batch that fits is [\d,]+\. 1 probe", outcome.out)
    assert "knee" in outcome.out
    assert "probing a batch of" in outcome.err


def test_options_against_devices(cli: Cli) -> None:
    outcome = cli("model", "factories.py:wide", "--predict", "--devices", f"Tesla T4,{H100}")

    assert outcome.code == 0, outcome.err
    head, *rows = outcome.out.splitlines()
    assert head.split()[-3:] == ["T4", "H100", "SXM"]
    assert any(row.startswith("--ranks 8 --strategy zero3 ") for row in rows)
    told = json.loads(cli("model", "factories.py:wide", "--predict", "--devices", H100, "--json").out)
    assert told["schema"] == "whystall.options/1"
    assert told["options"][0]["cells"][0]["fits"] is True


def test_a_rank_of_several_kinds_of_parallelism(cli: Cli) -> None:
    kinds = ("--tensor-parallel", "4", "--sequence-parallel", "--pipeline-parallel", "2", "--micro-batches", "6")
    outcome = cli("model", "blocks.py:stack", "--predict", *kinds, "--ranks", "2", "--strategy", "zero1")

    assert outcome.code == 0, outcome.err
    text = " ".join(outcome.out.split())
    assert "on one of 16 devices (4 tensor parallel by 2 stages by 2 zero1)" in text
    assert "stage held at most 0" in text
    assert "at least 14.3 % of a step, with 6 micro-batches on 2 stages; with 24 it were 4.0 %." in text
    assert "Assumed: tensor parallelism of 4" in text


def test_an_effective_batch_is_told_as_accumulation(cli: Cli) -> None:
    outcome = cli("model", "factories.py:square", "--predict", "--batch", "8", "--effective-batch", "24")

    assert "3 batches of 8 make an effective batch of 24: divide each loss by 3" in " ".join(outcome.out.split())


def test_a_largest_batch_is_for_predictions(cli: Cli) -> None:
    outcome = cli("model", "factories.py:square", "--batch", "max")
    assert outcome.code == 2
    assert "--batch wants" in outcome.err


def test_choices_are_those_of_a_request() -> None:
    """They stand twice, since whoever asks for help does not wait for torch."""
    from whystall.cli import model_predict
    from whystall.model.prediction import request

    assert model_predict.ATTENTIONS == request.ATTENTIONS
    assert model_predict.KERNELS == request.KERNELS
    assert request.STRATEGIES[1:] == model_predict.STRATEGIES
    assert model_predict.CHECKPOINTS == request.CHECKPOINTS
