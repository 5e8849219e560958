"""A job that is killed keeps the ledger of all its time."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.capture.conftest import JOBS, Jobs

from whystall._inputs import job_without_steps
from whystall.run_folder.job_journal import read_journals

pytest.importorskip("torch")

MOST_UNKNOWN_S = 0.5
"""A look and a line of the journal are 0.04 s and 0.2 s apart; a busy machine delays both."""


def parts(jobs: Jobs, stage: str) -> tuple[dict[tuple[str, str], float], dict[str, Any]]:
    ran = jobs.whystall(str(JOBS / "killed.py"), stage)
    assert ran.code == -9, ran.stderr
    job = json.loads((ran.folder / "report.json").read_text())["job"]
    run = json.loads((ran.folder / "run.json").read_text())
    assert job["wall_ns"] == run["ended_unix_ns"] - run["began_unix_ns"] == sum(one["ns"] for one in job["parts"])
    return {(one["phase"], one["part"]): one["ns"] / 1e9 for one in job["parts"]}, job


def test_before_its_first_step(jobs: Jobs) -> None:
    ran = jobs.whystall(str(JOBS / "killed.py"), "start")
    assert ran.code == -9
    told = " ".join(ran.stderr.split())
    assert re.search(r"the job ran [\d.]+ s: set-up [\d.]+ s", told) or "import torch" in told
    job = job_without_steps(ran.folder)
    assert job is not None
    assert job.first_step_ns is None
    slept = sum(place.ns for place in job.before_steps if place.function == "prepares") / 1e9
    assert slept == pytest.approx(1.2, abs=MOST_UNKNOWN_S)
    assert job.wall_ns == sum(part.ns for part in job.parts)


def test_amid_its_steps(jobs: Jobs) -> None:
    found, job = parts(jobs, "steps")
    assert found["steps", "steps"] > 60 * 0.02
    assert found["steps", "evaluation"] == pytest.approx(0.8, abs=MOST_UNKNOWN_S)
    assert not [part for phase, part in found if phase == "end" and part != "exit"]
    assert found["end", "exit"] == 0
    assert job["after_steps"] == []


def test_after_its_last_step(jobs: Jobs) -> None:
    found, job = parts(jobs, "end")
    assert found["end", "tail"] == pytest.approx(7.0, abs=MOST_UNKNOWN_S)
    assert job["after_steps"][0]["function"] == "publishes"


def test_a_job_that_ends_well_has_the_same_in_both_places(jobs: Jobs) -> None:
    ran = jobs.whystall(str(JOBS / "whole_job.py"))
    assert ran.code == 0
    (kept,) = read_journals(ran.folder).values()
    described = json.loads((ran.folder / "run.json").read_text())["ranks"][0]["job"]
    for name in ("process_unix_ns", "capture_unix_ns", "torch_unix_ns", "imported_unix_ns", "first_step_unix_ns"):
        assert getattr(kept, name) == described[name]
    assert sum(kept.before.values()) / 1e9 == pytest.approx(sum(described["before"].values()) / 1e9, abs=MOST_UNKNOWN_S)
