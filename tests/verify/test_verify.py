"""The verb ``verify`` on real processes: small training loops in which an environment variable makes the difference."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from whystall._inputs import read_run_facts
from whystall.cli import main
from whystall.diagnosis.causes import Statistic
from whystall.verify.measure import Block, Variant, run_block, run_recorded
from whystall.verify.proof import Proof, Recorded, prove, prove_calls
from whystall.verify.remedies import Tried, append, brought, read, record_file

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


PADS = """
import torch
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 4 * 60
    def __getitem__(self, index):
        row = torch.zeros(32, dtype=torch.long)
        row[: 4 + index % 5] = torch.randint(1, 90, (4 + index % 5,))
        return row
model = torch.nn.Sequential(torch.nn.Embedding(100, 16), torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in torch.utils.data.DataLoader(Rows(), batch_size=4):
    model(rows).pow(2).mean().backward()
    optimizer.step()
"""


def test_a_recorded_variant_has_what_watching_alone_observes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PADS)
    (tmp_path / "run").mkdir()
    code, _ = run_recorded(Variant((sys.executable, str(tmp_path / "train.py"))), tmp_path / "run", None)
    assert code == 0
    facts = read_run_facts([tmp_path / "run"], [], remedies=False)
    assert facts.observed[0].padding is not None
    assert facts.cores is not None


@pytest.mark.alone
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


@pytest.mark.alone
def test_functions_of_one_process() -> None:
    proof = prove_calls(lambda: sum(range(200_000)), lambda: sum(range(1_000)), pairs=4, repeats=3)
    assert proof.measured_by == "calls"
    assert proof.paired.speedup.ratio > 5


def tried(measured: float, **more: Any) -> Tried:
    values = {"cause": "host.gc", "predicted": 1.2, "low": 1.0, "high": 2.0, "unix_s": 1, "statistic": "mean", **more}
    return Tried(measured=measured, **values)


def test_remedies_are_remembered_by_what_they_brought_at_least_and_at_most(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "remedies.jsonl"
    for measured in (1.1, 1.2, 1.05):
        append(path, tried(measured))
    append(path, tried(1.2, cause="host.sync"))
    with path.open("a") as file:
        file.write("nonsense\n{}\n")
    assert len(read(path)) == 4
    assert brought(read(path), lambda _: "mean") == {"host.gc": pytest.approx((0.25, 1.0))}
    assert read(tmp_path / "none") == []


def test_what_was_measured_by_the_wrong_statistic_or_by_none_is_not_remembered(tmp_path: Path) -> None:
    path = tmp_path / "remedies.jsonl"
    for statistic in ("median", None):
        for _ in range(4):
            append(path, tried(0.99, statistic=statistic))
    path.write_bytes(
        path.read_bytes() + b'{"cause":"host.gc","predicted":1.5,"measured":1.0,"low":1,"high":1,"unix_s":1}\n' * 4
    )
    assert len(read(path)) == 12
    assert brought(read(path), lambda _: "mean") == {}


def test_one_absurd_outcome_does_not_turn_predictions_upside_down() -> None:
    assert brought([tried(9.0, predicted=1.01)] * 3, lambda _: "mean") == {"host.gc": (1.5, 1.5)}
    assert brought([tried(0.2)] * 3, lambda _: "mean") == {"host.gc": (0.0, 0.0)}


def test_causes_that_happen_now_and_then_are_judged_by_the_mean() -> None:
    from whystall.cli.verify import _statistic

    assert [_statistic(cause) for cause in ("episodic.checkpoint", "host.sync", None)] == ["mean", "median", "median"]


CHECKPOINTS = """
import os, time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    time.sleep(0.002)
    if os.environ["SAVES"] == "1" and step % 4 == 0:
        time.sleep(0.02)
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
"""


@pytest.mark.alone
def test_what_happens_now_and_then_is_proven_by_the_mean_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(CHECKPOINTS)
    command = ["--pairs", "2", "--toggle", "SAVES=1,0", "--json", "--", sys.executable, str(script)]
    assert main(["verify", "--by", "mean", *command]) == 0
    proof = json.loads(capsys.readouterr().out)
    assert proof["statistic"] == "mean"
    assert proof["paired"]["speedup"]["ratio"] > 1.4
    assert proof["otherwise"]["speedup"]["ratio"] < 1.4  # the median step never sleeps for long
    assert prove_calls(lambda: None, lambda: None, pairs=2, repeats=1).statistic is None


@pytest.mark.parametrize(
    ("pattern", "says"), [("lss (.*)", "matches nothing"), ("(loss)", "'loss', which is no number")]
)
def test_a_loss_that_is_not_found_proves_nothing(
    script: str, pattern: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--toggle", "SHIFT=0,5", "--pairs", "2", "--loss", pattern, "--", sys.executable, script]
    assert main(["verify", *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert "nothing is proven" in told.err


def proof_of(
    monkeypatch: pytest.MonkeyPatch,
    *,
    after_ns: float,
    flops: tuple[float, float],
    kinds: tuple[str | None, str | None] = (None, None),
) -> Proof:
    """What is said of steps of 10 ms before a change, of runs that take 4 s before and 2 s after it."""
    steps = {"before": 0.01, "after": after_ns / 1e9}
    runs = {"before": 4.0, "after": 2.0}

    def block(variant: Variant, _loss: object, **_more: object) -> Block:
        (name,) = variant.command
        times: dict[Statistic, float] = {"mean": steps[name], "median": steps[name]}
        kind = kinds[("before", "after").index(name)]
        return Block(run_s=runs[name], by=times, steps=100, loss=None, exit_code=0, kind=kind)

    recorded = iter(flops)
    monkeypatch.setattr("whystall.verify.proof.run_block", block)
    monkeypatch.setattr("whystall.verify.proof.run_recorded", lambda *_: (0, ""))
    return prove(
        Variant(("before",)),
        Variant(("after",)),
        pairs=4,
        cause="compute.redundant-work",
        diagnose=lambda _folder: Recorded([], next(recorded)),
    )


def test_steps_that_hold_more_after_a_change_are_not_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step was one of eight passes of a request, and is the whole request after it."""
    proof = proof_of(monkeypatch, after_ns=40_000_000, flops=(1e9, 8e9))
    assert proof.measured_by == "runs"
    assert proof.paired.speedup.ratio == pytest.approx(2)
    assert "computes 8 times the work" in proof.warnings[0]


def test_steps_of_another_kind_are_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step was a request that is decoded, and is a token's pass through what is still called of the model."""
    passes = ("forward passes (decoding)", "forward passes (each)")
    proof = proof_of(monkeypatch, after_ns=200_000, flops=(8e9, 1e9), kinds=passes)
    assert proof.measured_by == "runs"
    assert proof.paired.speedup.ratio == pytest.approx(2)
    assert "they are other steps" in proof.warnings[0]


@pytest.mark.parametrize("kinds", [("optimizer", "optimizer"), (None, "optimizer"), (None, None)])
def test_steps_of_one_kind_are_compared(kinds: tuple[str | None, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    proof = proof_of(monkeypatch, after_ns=200_000, flops=(8e9, 1e9), kinds=kinds)
    assert proof.measured_by == "steps"
    assert not proof.warnings[1:]


SERVICE = """
import sys, time, torch
layer = torch.nn.Linear(8, 8)

class Answers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = layer

    def forward(self, tokens):
        return self.layer(tokens.T.expand(-1, 8)).sum()

model = Answers().eval()
with torch.no_grad():
    for request in range(250):
        time.sleep(0.01)
        for place in range(1, 9):
            if sys.argv[1] == "whole":
                model(torch.ones(1, place))
            else:
                layer(torch.ones(1, 8))
"""


def test_what_ends_steps_is_known_of_real_runs(tmp_path: Path) -> None:
    """Of answers whose passes come in turn each is a step; of calls that are all alike each call is."""
    path = tmp_path / "service.py"
    path.write_text(SERVICE)
    kinds = [run_block(Variant((sys.executable, str(path), how)), None).kind for how in ("whole", "parts")]
    assert kinds == ["forward passes (in turn)", "forward passes (each)"]


@pytest.mark.parametrize(
    ("after_ns", "flops"),
    [
        (40_000_000, (1e9, 1.1e9)),  # the same work, and slower
        (5_000_000, (1e9, 8e9)),  # a product in the place of what is no product: faster whatever it computes
        (40_000_000, (0.0, 8e9)),  # not known
    ],
)
def test_other_steps_are_compared_by_their_times(
    monkeypatch: pytest.MonkeyPatch, after_ns: float, flops: tuple[float, float]
) -> None:
    proof = proof_of(monkeypatch, after_ns=after_ns, flops=flops)
    assert proof.measured_by == "steps"
    assert proof.paired.speedup.ratio == pytest.approx(1e7 / after_ns)
