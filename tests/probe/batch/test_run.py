"""Batches that really run on this CPU, in processes that may die of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from whystall.errors import InputError, UsageError
from whystall.model.prediction.predict import predict
from whystall.model.prediction.results import Prediction
from whystall.model.prediction.simulator import Simulator
from whystall.probe.batch.run import probe_batches

pytest.importorskip("torch", reason="probes run torch")

FACTORIES = """
import os, signal, time
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

def _is_real():
    return not isinstance(torch.empty(1), FakeTensor)

def perceptron(batch=4):
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)), torch.randn(batch, 256)

def hidden(batch=4):
    "Holds twice as much as a prediction sees."
    model, x = perceptron(batch)
    if _is_real():
        forward = model.forward
        model.forward = lambda given: (forward(given), torch.empty(2 * 2048 * batch).sum())[0]
        model.kept = torch.empty(1024 * 3 * batch)
    return model, x

def killed(batch=4):
    if _is_real() and batch > 200:
        os.kill(os.getpid(), signal.SIGKILL)
    return perceptron(batch)

def full(batch=4):
    if _is_real() and batch > 200:
        torch.empty(1 << 60, dtype=torch.uint8)
    return perceptron(batch)

def sleeping(batch=4):
    if _is_real():
        time.sleep(600)
    return perceptron(batch)

def failing(batch=4):
    if _is_real():
        raise ValueError("no such tokeniser")
    return perceptron(batch)
"""
LIMIT = 16 << 20


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with Simulator() as running:
        yield running


@pytest.fixture
def factories(tmp_path: Path) -> str:
    path = tmp_path / "factories.py"
    path.write_text(FACTORIES)
    return str(path)


def largest(factories: str, name: str, simulator: Simulator) -> Prediction:
    options = {"limit_bytes": LIMIT, "optimizer": "sgd", "simulator": simulator}
    return predict(f"{factories}:{name}", batch="max", **options)  # type: ignore[arg-type]


def test_the_predicted_batch_really_fits_and_holds_what_was_predicted(factories: str, simulator: Simulator) -> None:
    found = largest(factories, "perceptron", simulator)

    probed = probe_batches(found, curve_s=2.0)

    (attempt,) = probed.attempts
    assert attempt.outcome == "fits"
    assert attempt.held_bytes == pytest.approx(found.peak_bytes, rel=0.001)
    assert attempt.held_bytes is not None
    assert attempt.held_bytes <= LIMIT
    assert probed.curve[-1].batch == attempt.batch == found.request.batch
    assert [one.batch for one in probed.curve] == sorted({one.batch for one in probed.curve})
    assert all(one.fastest_ns <= one.step_ns <= one.slowest_ns for one in probed.curve)


def test_what_holds_more_than_predicted_is_told_and_a_smaller_batch_found(factories: str, simulator: Simulator) -> None:
    probed = probe_batches(largest(factories, "hidden", simulator), curve_s=0.0)

    first, *others = probed.attempts
    assert first.outcome == "over the limit"
    assert first.held_bytes is not None
    assert first.held_bytes > LIMIT
    assert others[-1].outcome == "fits"
    assert probed.largest == others[-1].batch < first.batch


@pytest.mark.parametrize(("name", "outcome"), [("killed", "killed"), ("full", "out of memory")])
def test_a_probe_that_dies_of_its_memory_is_a_result(
    factories: str, simulator: Simulator, name: str, outcome: str
) -> None:
    probed = probe_batches(largest(factories, name, simulator), curve_s=0.0)

    assert probed.attempts[0].outcome == outcome
    assert probed.attempts[0].said
    assert len(probed.attempts) == 3
    assert probed.largest is None or probed.largest <= 200


def test_a_probe_that_does_not_come_back_is_ended(factories: str, simulator: Simulator) -> None:
    probed = probe_batches(largest(factories, "sleeping", simulator), timeout_s=8.0)

    assert {one.outcome for one in probed.attempts} == {"timed out"}


def test_a_model_that_fails_otherwise_is_said_with_its_error(factories: str, simulator: Simulator) -> None:
    with pytest.raises(InputError, match=r"failed with a batch of .*ValueError: no such tokeniser"):
        probe_batches(largest(factories, "failing", simulator))


def test_a_device_that_is_not_here_is_said(factories: str, simulator: Simulator) -> None:
    found = predict(f"{factories}:perceptron", batch="max", device="Tesla T4", simulator=simulator)

    assert probe_batches(found).because == "this machine has no Tesla T4"


@pytest.mark.parametrize(
    "options", [{"ranks": 2, "strategy": "zero1"}, {"ranks": 2, "strategy": "ddp", "tensor_parallel": 2}]
)
def test_ranks_that_share_otherwise_are_not_probed(
    factories: str, simulator: Simulator, options: dict[str, object]
) -> None:
    given = {"limit_bytes": LIMIT, "simulator": simulator, **options}
    found = predict(f"{factories}:perceptron", batch="max", **given)  # type: ignore[arg-type]

    with pytest.raises(UsageError, match="--strategy ddp or fsdp2"):
        probe_batches(found)
