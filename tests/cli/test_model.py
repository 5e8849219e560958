"""``whystall model``: factories, inputs, formats, and what it says of mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from whystall.hardware.calibration import Calibration, Matmul, calibration_folder, write_calibration
from whystall.probe.device import cpu_name, machine_name
from whystall.trace.cache import default_folder

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

pytest.importorskip("torch", reason="models need torch")

FACTORIES = """
import torch
from torch import nn

def network():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)), torch.zeros(8, 64)

def batched(batch=4):
    return nn.Linear(64, 32), (torch.zeros(batch, 64),), {}

def named():
    return nn.Linear(64, 32), {"input": torch.zeros(8, 64)}

def bare():
    return nn.Conv2d(3, 8, 3)

def nothing():
    return 7

def failing():
    return nn.Linear(8, 4), torch.zeros(2, 7)

def raising():
    raise KeyError("weights")

def two_inputs():
    return nn.Bilinear(4, 4, 1, bias=False), torch.zeros(2, 4), torch.zeros(2, 4)

def surplus():
    return nn.Linear(64, 32), {}, (torch.zeros(8, 64),)

def empty():
    return ()
"""
FORWARD = 2 * 8 * (64 * 32 + 32 * 16)
BACKWARD = FORWARD + 2 * 8 * 32 * 16


@pytest.fixture(autouse=True)
def factories(tmp_path: Path) -> Path:
    path = tmp_path / "factories.py"
    path.write_text(FACTORIES)
    return path


def profile_of(cli: Cli, *arguments: str) -> dict[str, Any]:
    outcome = cli("model", *arguments, "--json", "--repeats", "0")
    assert outcome.code == 0, outcome.err
    parsed: dict[str, Any] = json.loads(outcome.out)
    return parsed


def test_the_tree(cli: Cli) -> None:
    outcome = cli("model", "factories.py:network", "--repeats", "1")

    assert outcome.code == 0
    assert "2,608 parameters" in outcome.out
    assert "\nSequential " in outcome.out
    assert "\n  0 Linear " in outcome.out
    assert "Every operator on floating-point data is covered." in outcome.out
    assert "1 multiply-accumulate is 2 FLOPs" in outcome.out
    assert "Times are those of one run" in outcome.out


def test_depth(cli: Cli) -> None:
    assert "Linear" not in cli("model", "factories.py:network", "--repeats", "0", "--depth", "0").out


def test_json(cli: Cli) -> None:
    profile = profile_of(cli, "factories.py:network")

    assert profile["schema"] == "whystall.model/1"
    assert profile["forward"]["model_flops"] == FORWARD
    assert profile["backward"]["model_flops"] == BACKWARD
    assert profile["forward"]["time_ns"] is None


def test_inference_and_training(cli: Cli) -> None:
    assert profile_of(cli, "factories.py:network", "--infer")["backward"]["model_flops"] == 0
    assert profile_of(cli, "factories.py:network", "--train")["optimizer"]["all_flops"] != 0


@pytest.mark.parametrize("factory", ["network", "batched", "named"])
def test_batch(cli: Cli, factory: str) -> None:
    once, twice = (profile_of(cli, f"factories.py:{factory}", "--batch", size) for size in ("3", "6"))

    assert once["forward"]["model_flops"] != 0
    assert twice["forward"]["model_flops"] == 2 * once["forward"]["model_flops"]


def test_input_shape_dtype_and_device(cli: Cli) -> None:
    arguments = ("factories.py:bare", "--input-shape", "2,3,10,10", "--infer")

    single, half = (profile_of(cli, *arguments, *more) for more in ((), ("--dtype", "bf16", "--device", "meta")))

    assert single["forward"]["model_flops"] == half["forward"]["model_flops"] == 2 * 2 * 8 * 3 * 9 * 64
    assert 2 * half["forward"]["bytes"] == single["forward"]["bytes"]


def test_a_module_of_a_package(cli: Cli) -> None:
    assert profile_of(cli, "torch.nn:Identity", "--input-shape", "2,3")["parameters"] == 0


def test_html(cli: Cli) -> None:
    assert cli("model", "factories.py:network", "--repeats", "0", "--html", "model.html").code == 0
    page = Path("model.html").read_text()

    assert page.startswith("<!DOCTYPE html>")
    assert "http" not in page.replace("http-equiv", "")
    assert "Sequential" in page
    assert cli("model", "factories.py:network", "--html", "model.html").code == 2


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("factories.py", 2, "names no factory"),
        ("absent.py:model", 3, "no such file"),
        ("absent_package:model", 3, "cannot import absent_package"),
        ("factories.py:absent", 3, "has no 'absent'"),
        ("factories.py:nothing", 2, "gave int, not a torch.nn.Module"),
        ("factories.py:bare", 2, "add --input-shape"),
        ("factories.py:failing", 3, "factories.py:failing failed: RuntimeError: mat1 and mat2"),
        ("factories.py:raising", 3, "factories.py:raising failed: KeyError"),
    ],
)
def test_mistakes_are_named(cli: Cli, target: str, code: int, words: str) -> None:
    outcome = cli("model", target)

    assert outcome.code == code
    assert words in outcome.err


def test_a_number_must_be_one(cli: Cli) -> None:
    assert cli("model", "factories.py:network", "--depth", "deep").code == 2


def measured_here(rate: float, precision: str = "fp32") -> Path:
    """A calibration of this machine's own processor."""
    product = Matmul(precision=precision, m=1, n=1, k=1, repeats=5, best_ns=1, median_ns=1, flops_per_s=rate)
    calibration = Calibration(
        machine=machine_name(),
        device=cpu_name(),
        kind="cpu",
        measured_on="2026-11-20",
        torch="2.13.0",
        matmul=[product],
    )
    return write_calibration(calibration, calibration_folder(default_folder()))


def test_rates_are_held_against_what_was_measured_here(cli: Cli) -> None:
    measured_here(1e9)
    outcome = cli("model", "factories.py:network", "--repeats", "2")
    line = next(line for line in outcome.out.splitlines() if line.startswith("Of "))
    assert "Of 1.00 GFLOP/s (the best fp32 product measured here on 2026-11-20 by whystall probe): forward " in line
    assert ", backward " in line


def test_without_a_measurement_of_the_type_nothing_is_claimed(cli: Cli) -> None:
    measured_here(1e9, "bf16")
    assert "measured here" not in cli("model", "factories.py:network", "--repeats", "1").out


def test_a_damaged_measurement_costs_a_note(cli: Cli) -> None:
    measured_here(1e9).write_text("{")
    outcome = cli("model", "factories.py:network", "--repeats", "1")
    assert outcome.code == 0
    assert "is ignored" in outcome.err


def test_inputs_may_stand_one_by_one(cli: Cli) -> None:
    assert profile_of(cli, "factories.py:two_inputs")["forward"]["model_flops"] == 2 * 2 * 4 * 4 + 2 * 2 * 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["factories.py:surplus"], "gave inputs behind a dictionary: return (model, args, kwargs)"),
        (["factories.py:empty"], "gave tuple, not a torch.nn.Module"),
        (["factories.py:network", "--batch", "0"], "--batch wants at least one sample, not 0"),
        (["factories.py:network", "--device", "cuda:63"], "there is no 'cuda:63' here"),
        (["factories.py:network", "--device", "gpu"], "'gpu' is no device"),
    ],
)
def test_what_makes_no_sense_is_said(cli: Cli, arguments: list[str], sentence: str) -> None:
    outcome = cli("model", *arguments)

    assert outcome.code == 2
    assert sentence in outcome.err
