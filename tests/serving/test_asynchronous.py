"""A server that schedules asynchronously logs only the blocked part of a step: token times give the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.serving.server import MS, Call, Engine

from whystall.serving.diagnose import diagnose
from whystall.serving.folder import read_run
from whystall.serving.run_analysis import Analysis, analyze_run
from whystall.serving.what_if import answer

ENABLED = "(APIServer pid=1) INFO 11-28 11:51:59 [vllm.py:1] Asynchronous scheduling is enabled.\n"


def blocked(engine: Engine, folder: Path, *, tokens: bool = True) -> Analysis:
    """A run with a third of each step's time in the log; without ``tokens`` the client has the first and the last."""
    folder.mkdir()
    shorter = re.sub(r"time: ([\d.]+) ms", lambda found: f"time: {float(found[1]) / 3:.2f} ms", engine.log())
    (folder / "log").write_text(ENABLED + shorter)
    result = json.loads(engine.bench())
    if not tokens:
        result["itls"] = [[] for _ in engine.calls]
    (folder / "client").write_text(json.dumps(result))
    return analyze_run(read_run([folder]))


def calls() -> list[Call]:
    return [Call(number * 20 * MS, 96 + number % 5 * 16, 20 + number % 3 * 4) for number in range(50)]


def test_steps_last_from_token_to_token(tmp_path: Path) -> None:
    engine = Engine().serve(calls())

    found = blocked(engine, tmp_path / "run")

    assert not found.is_partial
    assert any("a step lasts from one token to the next here" in note for note in found.notes)
    assert found.membership is not None
    assert found.membership.mismatched == 0
    assert found.model is not None
    assert found.model.step_ns == pytest.approx(4.5 * MS, rel=0.1)  # with the engine's own half of a millisecond
    assert found.model.token_ns == pytest.approx(MS / 8, rel=0.1)
    for ledger, call in zip(found.ledgers, engine.calls, strict=True):
        assert sum(ledger.parts.values()) == ledger.total_ns == call.token_at[-1] - call.sent


def test_another_setting_is_predicted_from_tokens(tmp_path: Path) -> None:
    found = blocked(Engine(max_num_seqs=4).serve(calls()), tmp_path / "run")
    other = Engine(max_num_seqs=16).serve(calls())

    answered = answer(found, {"--max-num-seqs": 16})

    assert answered.prediction is not None
    whole = sorted(one.token_at[-1] - one.sent for one in other.calls)
    assert answered.prediction.metric("e2e", 50).after_ns == pytest.approx(whole[len(whole) // 2], rel=0.1)


def test_a_report_predicts_nothing_without_token_times(tmp_path: Path) -> None:
    """The report is of one mind with what-if: no self-check, and no replay of a remedy."""
    engine = Engine(max_num_seqs=1).serve([Call(number * 20 * MS, 96, 60) for number in range(20)])

    found = diagnose(blocked(engine, tmp_path / "run", tokens=False))

    assert found.findings[0].cause.id == "sched.max-num-seqs"
    assert all(one.prediction is None for one in found.findings)
    assert found.check is None


def test_without_token_times_the_replay_is_refused(tmp_path: Path) -> None:
    engine = Engine().serve([Call(number * 150 * MS, 96, 60) for number in range(20)])
    found = blocked(engine, tmp_path / "run", tokens=False)

    assert found.is_partial
    assert any("the cost of a step is too small" in note for note in found.notes)
    answered = answer(found, {"--max-num-seqs": 2})
    assert answered.check is None
    assert answered.prediction is None
    assert answered.headline.startswith("No answer: the server scheduled asynchronously")
