"""`whystall tune` as one types it; what it measures is made up, so that its truth is known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from whystall.verify.tune.measurer import Measurer
from whystall.verify.tune.results import Outcome, Seen, Settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose optimizer takes half of its steps; fused it takes nothing. Runs scatter by a thousandth."""
    (tmp_path / "train.py").write_text("raise SystemExit('it is never run')\n")
    runs: list[Settings] = []

    def run(_self: Measurer, settings: Settings) -> Outcome:
        runs.append(settings)
        scatter = 1 + 0.001 * (len(runs) % 3)
        if settings.get("--width") == "9":
            return Outcome(step_s=None, failed_because="out of memory, exit code 1")
        fused = settings.get("optimizer") == "fused"
        seen = Seen(
            shares={"input": 0.0, "optimizer": 0.0 if fused else 0.5},
            optimizers=[{"class": "AdamW", "can": ["fused"], "fused": None, "file": "train.py", "line": 7}],
            threads=1,
        )
        return Outcome(step_s=(0.01 if fused else 0.02) * scatter, seen=seen)

    monkeypatch.setattr(Measurer, "_run", run)


def test_what_won_is_told_with_how_to_keep_it(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("tune", "-o", "found", "train.py", "--epochs", "2")
    assert outcome.code == 0
    assert outcome.out.startswith("2.00 times as fast")
    assert "optimizer=fused" in outcome.out
    assert "python train.py --epochs 2" in outcome.out
    assert "train.py:7: AdamW(…, fused=True)" in outcome.out
    assert "not tried: num_workers, no DataLoader was made" in outcome.out
    assert "trial 1: optimizer=fused" in outcome.err
    assert "wrote found/tune.html" in outcome.err
    page = (tmp_path / "found" / "tune.html").read_text()
    assert "<h1>2.00 times as fast" in page
    assert "train.py:7: AdamW(…, fused=True)" in page
    assert "--epochs" not in page, "no argument of the command is kept: it may be secret"


def test_json_is_the_result(cli: Cli, tmp_path: Path) -> None:
    body = json.loads(cli("tune", "-o", "found", "--json", "train.py").out)
    assert body["schema"] == "whystall.tune/1"
    assert body["settings"] == {"optimizer": "fused"}
    assert json.loads((tmp_path / "found" / "tune.json").read_text())["result"]["settings"] == body["settings"]


def test_a_value_that_fails_is_a_row(cli: Cli) -> None:
    outcome = cli("tune", "-o", "found", "--knob", "--width=9", "--", "python", "train.py")
    assert outcome.code == 0
    assert "--width=9: out of memory, exit code 1" in outcome.out


def test_an_interrupted_search_says_how_to_go_on_and_does(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Measurer._run
    left = iter(range(4))

    def interrupted(self: Measurer, settings: Settings) -> Outcome:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return made(self, settings)

    monkeypatch.setattr(Measurer, "_run", interrupted)
    first = cli("tune", "-o", "found", "train.py")
    assert first.code == 130
    assert "to go on: whystall tune -o found" in first.err

    monkeypatch.setattr(Measurer, "_run", made)
    second = cli("tune", "-o", "found", "train.py")
    assert second.code == 0
    assert "going on after 4 runs" in second.err
    assert "optimizer=fused" in second.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--pairs", "2", "train.py"), "--pairs must be at least 3"),
        (("--steps", "3", "train.py"), "--steps must be at least 12"),
        (("--knob", "--width", "train.py"), "--knob takes an argument"),
        (("absent.py",), "no such script"),
        ((), "nothing to run"),
    ],
)
def test_what_makes_no_sense_is_said(cli: Cli, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = cli("tune", *arguments)
    assert outcome.code == 2
    assert sentence in outcome.err
