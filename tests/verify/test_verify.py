"""The verb ``verify`` on real processes: small training loops in which an environment variable makes the difference."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from whystall.cli import main
from whystall.verify.proof import prove_calls
from whystall.verify.remedies import Tried, append, read, record_file, scales

SCRIPT = """
import os, time, torch
torch.manual_seed(0)
model, loss = torch.nn.Linear(4, 4), None
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(25):
    time.sleep(float(os.environ.get("PAUSE", "0")))
    loss = model(torch.ones(2, 4)).pow(2).mean() + float(os.environ.get("SHIFT", "0"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_pause_that_is_removed_is_proven_and_recorded(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        [
            "verify",
            "--pairs",
            "2",
            "--toggle",
            "PAUSE=0.03,0.003",
            "--finding",
            "host.python",
            "--loss",
            "loss (.*)",
            "--json",
            "--",
            sys.executable,
            script,
        ]
    )
    proof = json.loads(capsys.readouterr().out)
    assert code == 0
    assert proof["measured_by"] == "steps"
    assert proof["paired"]["speedup"]["ratio"] > 2
    assert proof["numerics"]["agree"] is True
    assert proof["before_has_cause"] is True
    tried = read(record_file(dict(os.environ)))
    assert [(one.cause, one.measured) for one in tried] == [("host.python", proof["paired"]["speedup"]["ratio"])]


def test_another_loss_is_an_exit_code(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["verify", "--pairs", "2", "--toggle", "SHIFT=0,5", "--loss", "loss (.*)", "--", sys.executable, script]
    )
    assert code == 1
    assert "THE LOSSES DIFFER" in capsys.readouterr().out


def test_a_command_that_fails_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    failing = f"{sys.executable} -c 'raise SystemExit(3)'"
    assert main(["verify", "--pairs", "2", "--before", failing, "--after", failing]) == 1
    assert "exit code 3: nothing is proven" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--before", "a"],
        ["--toggle", "A=1"],
        ["--toggle", "A=1,2"],
        ["--toggle", "1=1,2", "--", "true"],
        ["--before", "a", "--after", "b", "--pairs", "1"],
        ["--before", "true", "--after", "true", "--pairs", "2", "--tolerance", "-1"],
        ["--before", "true", "--after", "true", "--pairs", "2", "--tolerance", "nan"],
        ["--before", "true", "--after", "true", "--pairs", "2", "--timeout", "0"],
        ["--before", "a", "--after", "b", "--finding", "none.such"],
        ["--before", "a", "--after", "b", "--loss", "("],
        ["--before", "a", "--after", "b", "--loss", "x"],
        ["--before", "'", "--after", "b"],
        ["--before", "/no/such/command", "--after", "b", "--pairs", "2"],
    ],
)
def test_what_cannot_be_verified_is_a_usage_error(words: list[str]) -> None:
    assert main(["verify", *words]) == 2


def test_functions_of_one_process() -> None:
    proof = prove_calls(lambda: sum(range(200_000)), lambda: sum(range(1_000)), pairs=4, repeats=3)
    assert proof.measured_by == "calls"
    assert proof.paired.speedup.ratio > 5


def test_remedies_scale_later_predictions_once_there_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "remedies.jsonl"
    for measured in (1.1, 1.15, 1.05):
        append(path, Tried(cause="host.gc", predicted=1.2, measured=measured, low=1, high=2, unix_s=1))
    append(path, Tried(cause="host.sync", predicted=1.2, measured=1.2, low=1, high=2, unix_s=1))
    with path.open("a") as file:
        file.write("nonsense\n{}\n")
    assert len(read(path)) == 4
    assert scales(read(path)) == {"host.gc": pytest.approx(0.5)}
    assert read(tmp_path / "none") == []


def test_one_absurd_outcome_does_not_turn_predictions_upside_down() -> None:
    tried = [Tried(cause="host.gc", predicted=1.01, measured=9.0, low=1, high=9, unix_s=1)] * 3
    assert scales(tried) == {"host.gc": 1.5}
