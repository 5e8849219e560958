"""Batches of an evaluation before training are no steps, once the optimizer has shown what steps are."""

from __future__ import annotations

import json

import pytest
from tests.capture.conftest import JOBS, Jobs

pytest.importorskip("torch")
STEPS = 12


def test_steps_are_those_of_the_optimizer(jobs: Jobs) -> None:
    ran = jobs.whystall(str(JOBS / "evaluates_first.py"))
    assert ran.code == 0, ran.stderr
    assert ran.stdout == "trained\n"
    (rank,) = json.loads((ran.folder / "run.json").read_text())["ranks"]
    assert (rank["steps"], rank["steps_from"]) == (STEPS, "optimizer")
    lines = [json.loads(line) for line in (ran.folder / "rank0.samples.jsonl").read_text().splitlines()]
    rows = [line for line in lines if isinstance(line, list)]
    assert [row[0] for row in rows] == list(range(1, STEPS))
    report = json.loads((ran.folder / "report.json").read_text())
    parts = {(one["phase"], one["part"]): one["ns"] / 1e9 for one in report["job"]["parts"]}
    assert parts["start", "evaluation"] > 30 * 0.2 * 0.8
    assert parts["steps", "steps"] + parts.get(("steps", "recording"), 0) < 12 * 0.1 + 3
    assert not [one for one in report["findings"] if one["id"] == "episodic.evaluation"]
