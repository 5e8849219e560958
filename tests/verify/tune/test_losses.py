"""Losses held against those of runs of the same settings: made-up ones, and a real job whose setting changes them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from whystall.report.document import as_text
from whystall.report.tune_text import tuning_document
from whystall.verify.tune.losses import compare
from whystall.verify.tune.measurer import Measurer, knob_of
from whystall.verify.tune.results import Losses, Outcome, Seen, Settings
from whystall.verify.tune.search import search

CURVE = np.exp(-np.arange(40) / 20)
SEEN = Seen(shares={}, models=[{"dtype": "float32"}])


def runs(*curves: np.ndarray) -> list[Outcome]:
    return [Outcome(step_s=1.0, step_losses=[float(one) for one in curve]) for curve in curves]


def said(
    before: list[Outcome], after: list[Outcome], changed: Settings | None = None, *same: list[Outcome]
) -> tuple[Losses, str | None]:
    found = compare(before, after, [before, after, *same], changed or {"threads": 2}, tolerance=0.01, seen=SEEN)
    return found.losses, found.because


def noisy(seed: int, share: float = 0.1, curve: np.ndarray = CURVE) -> np.ndarray:
    return np.asarray(curve * (1 + share * np.random.default_rng(seed).normal(size=len(curve))))


def test_roundings_agree_and_more_than_that_differs() -> None:
    assert said(runs(CURVE), runs(CURVE * (1 + 1e-6))) == ("agree", None)
    losses, because = said(runs(CURVE), runs(CURVE * 1.001))
    assert losses == "differ"
    assert because == (
        "the loss of step 1 is 1 before and 1.001 after; runs of the same settings differ there by 0 of it at the most"
    )


def test_roundings_that_grow_over_many_steps_agree() -> None:
    grown = CURVE * (1 + 1e-7 * 1.3 ** np.arange(40))
    assert grown[-1] / CURVE[-1] - 1 == pytest.approx(2.8e-3, rel=0.05)
    assert said(runs(CURVE), runs(grown)) == ("agree", None)


def test_what_runs_of_the_same_settings_differ_by_is_allowed_and_not_more() -> None:
    before = runs(noisy(0), noisy(1))
    assert said(before, runs(noisy(2), noisy(3)))[0] == "agree"
    assert said(before, runs(noisy(2) * 2, noisy(3) * 2))[0] == "differ"


def test_less_exact_numbers_are_allowed_their_roundings() -> None:
    rounded = CURVE * (1 + 2.0**-6)
    assert said(runs(CURVE), runs(rounded))[0] == "differ"
    assert said(runs(CURVE), runs(rounded), {"precision": "bf16"})[0] == "agree"
    assert said(runs(CURVE), runs(CURVE * 1.2), {"precision": "bf16"})[0] == "differ"
    assert said(runs(CURVE), runs(CURVE * (1 + 2.0**-6)), {"matmul_precision": "high"})[0] == "agree"


def test_other_random_numbers_agree_on_average_where_a_setting_draws_them() -> None:
    before, after = runs(noisy(0), noisy(0)), runs(noisy(1), noisy(1))  # each is seeded: runs of the same are the same
    assert said(before, after, {"num_workers": 2})[0] == "agree on average"
    assert said(before, after, {"threads": 2})[0] == "differ"
    assert said(before, runs(noisy(1) * 1.3, noisy(1) * 1.3), {"num_workers": 2})[0] == "differ"


def test_a_loss_that_is_no_number_any_more_is_told() -> None:
    broken: list[float | str | None] = [1.0, 0.9, "not finite", "not finite"]
    found = said(runs(CURVE), [Outcome(step_s=1.0, step_losses=broken)], {"precision": "bf16"})
    assert found == ("differ", "the loss of step 3 is not finite any more")


@pytest.mark.parametrize("steps", [[], [1.0, 2.0], [None] * 40])
def test_what_was_not_seen_is_not_compared(steps: list[float | str | None]) -> None:
    assert said(runs(CURVE), [Outcome(step_s=1.0, step_losses=steps)]) == ("not compared", None)


JOB = """
import sys, time
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x, y = torch.randn(8, 4), torch.randn(8, 2)
width = int(sys.argv[1].split("=")[1])
for step in range(60):
    time.sleep(0.02 / width)
    for part in range(2):  # gradients of two batches are added
        out = (model(x) - y).square()
        if width == 8:
            out.sum(1).backward(torch.ones(8))
        else:
            (out.mean() * (1.5 if width == 4 else 1)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def measurer(tmp_path: Path, values: str) -> Measurer:
    pytest.importorskip("torch", reason="a real job runs")
    (tmp_path / "job.py").write_text(JOB)
    command = (sys.executable, str(tmp_path / "job.py"), "--width=1")
    made = Measurer(command, tmp_path / "tuning", knob=knob_of(f"--width={values}", command), steps=20)
    made.open(force=False)
    return made


def test_a_real_job_shows_the_losses_of_its_steps(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    made = measurer(tmp_path, "2,4,8")
    found, other = made({}), made({"--width": "4"})

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    for step in range(10):
        loss = 2 * (model(x) - y).square().mean()
        assert found.step_losses[step] == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert other.step_losses[0] == pytest.approx(1.5 * found.step_losses[0])  # type: ignore[operator]
    assert not any(made({"--width": "8"}).step_losses)


@pytest.mark.alone  # a setting wins by the times of runs
@pytest.mark.parametrize(
    ("value", "verdict", "losses", "told"),
    [
        ("2", "faster", "agree", "losses agree step by step"),
        ("4", "losses differ", "differ", "the loss of step 1 is"),
        ("8", "faster", "not compared", "losses were not compared"),
    ],
)
def test_a_faster_setting_is_judged_by_the_losses_it_has(
    tmp_path: Path, value: str, verdict: str, losses: Losses, told: str
) -> None:
    made = measurer(tmp_path, value)
    found = search(made, knob=made.knob, most_trials=1, pairs=3)
    (trial,) = found.trials
    assert (trial.verdict, trial.losses) == (verdict, losses)
    assert told in as_text(tuning_document(found, None, []), 200)
