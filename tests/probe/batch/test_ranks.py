"""Batches on two ranks over gloo: what they agree on, and ranks that die, fill up or hang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from whystall.errors import InputError
from whystall.model.prediction.predict import predict
from whystall.model.prediction.results import Prediction
from whystall.model.prediction.simulator import Simulator
from whystall.probe.batch.ranks import RankEnd, agreed, joined
from whystall.probe.batch.results import Answer, BatchRun
from whystall.probe.batch.run import probe_batches

pytest.importorskip("torch", reason="probes run torch")

FACTORIES = """
import os, signal, sys, time
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

RANK = int(sys.argv[2]) if len(sys.argv) > 4 else None  # of a probe's process

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        block = lambda: nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
        self.blocks = nn.ModuleList(block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x

def deep(batch=4):
    return Deep(), torch.randn(batch, 128)

def killed(batch=4):
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return deep(batch)

def full(batch=4):
    if RANK == 1:
        torch.empty(1 << 60, dtype=torch.uint8)
    return deep(batch)

def sleeping(batch=4):
    if RANK == 1:
        time.sleep(600)
    return deep(batch)

def failing(batch=4):
    if RANK == 1:
        raise ValueError("no such tokeniser")
    return deep(batch)

def uneven(batch=4):
    model, x = deep(batch)
    if RANK == 1:
        model.kept = torch.empty(1 << 19)  # 2 MiB that the other has not
    return model, x
"""
LIMIT = 24 << 20


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with Simulator() as running:
        yield running


@pytest.fixture
def factories(tmp_path: Path) -> str:
    path = tmp_path / "factories.py"
    path.write_text(FACTORIES)
    return str(path)


def largest(factories: str, name: str, simulator: Simulator, strategy: str = "ddp") -> Prediction:
    options = {"limit_bytes": LIMIT, "optimizer": "sgd", "simulator": simulator, "ranks": 2, "strategy": strategy}
    return predict(f"{factories}:{name}", batch="max", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_ranks_really_hold_what_was_predicted(factories: str, simulator: Simulator, strategy: str) -> None:
    found = largest(factories, "deep", simulator, strategy)

    probed = probe_batches(found, curve_s=1.0)

    attempt = probed.attempts[0]
    assert attempt.held_bytes == pytest.approx(found.peak_bytes, rel=0.02), attempt
    assert probed.largest is not None
    assert all(one.ranks == 2 for one in probed.curve)


def test_the_fullest_rank_counts(factories: str, simulator: Simulator) -> None:
    found = largest(factories, "uneven", simulator)

    (attempt, *_) = probe_batches(found, curve_s=0.0).attempts

    assert attempt.outcome == "over the limit"
    assert attempt.held_bytes is not None
    assert attempt.held_bytes - found.peak_bytes == pytest.approx(2 << 20, rel=0.05)


@pytest.mark.parametrize(
    ("name", "outcome", "said"),
    [("killed", "killed", "SIGKILL of rank 1"), ("full", "out of memory", "rank 1: RuntimeError")],
)
def test_a_rank_that_dies_is_a_result_that_names_it(
    factories: str, simulator: Simulator, name: str, outcome: str, said: str
) -> None:
    probed = probe_batches(largest(factories, name, simulator), curve_s=0.0)

    assert {one.outcome for one in probed.attempts} == {outcome}
    assert str(probed.attempts[0].said).startswith(said)
    assert probed.largest is None


def test_a_rank_that_hangs_is_ended_with_the_other(factories: str, simulator: Simulator) -> None:
    probed = probe_batches(largest(factories, "sleeping", simulator), timeout_s=10.0)

    assert {(one.outcome, one.said) for one in probed.attempts} == {("timed out", "ranks 0, 1 did not answer")}


def test_a_rank_that_fails_otherwise_is_said_with_its_error(factories: str, simulator: Simulator) -> None:
    with pytest.raises(InputError, match=r"failed with a batch of .*rank 1: ValueError: no such tokeniser"):
        probe_batches(largest(factories, "failing", simulator))


def run(batch: int, held: int, step_ns: int) -> BatchRun:
    return BatchRun(batch=batch, held_bytes=held, steps=3, step_ns=step_ns, fastest_ns=step_ns - 1, slowest_ns=step_ns)


def test_what_ranks_agree_on() -> None:
    both = joined([run(8, 100, 20), run(8, 120, 10)])
    assert (both.held_bytes, both.step_ns, both.ranks) == (120, 20, 2)
    assert both.samples_per_s == 2 * 8 / 20e-9


def test_a_batch_counts_where_all_ranks_ran_it() -> None:
    ends = [
        RankEnd(0, [Answer(ran=run(8, 100, 20)), Answer(ran=run(4, 60, 12))], code=1, place=1),
        RankEnd(1, [Answer(ran=run(8, 120, 10)), Answer(out_of_memory="full")], code=0, place=0),
    ]
    answers, ended = agreed(ends, late=False)
    assert [one.ran.batch for one in answers if one.ran] == [8]
    assert ended is None
