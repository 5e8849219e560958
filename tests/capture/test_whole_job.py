"""A watched job has a ledger of all its time, from the launch to the exit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.capture.conftest import JOBS, Jobs

from whystall.report.format import duration

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    jobs = Jobs(tmp_path_factory.mktemp("job"))
    ran = jobs.whystall(str(JOBS / "whole_job.py"))
    assert ran.code == 0, ran.stderr
    report = json.loads((ran.folder / "report.json").read_text())
    return ran.folder, report, ran.stderr


def parts(report: dict[str, Any]) -> dict[str, float]:
    return {one["part"]: one["ns"] / 1e9 for one in report["job"]["parts"]}


def test_the_parts_add_up_to_the_command(watched: tuple[Path, dict[str, Any], str]) -> None:
    folder, report, _ = watched
    run = json.loads((folder / "run.json").read_text())
    job = report["job"]
    assert job["wall_ns"] == run["ended_unix_ns"] - run["began_unix_ns"] == sum(one["ns"] for one in job["parts"])


def test_each_sleep_is_in_its_part(watched: tuple[Path, dict[str, Any], str]) -> None:
    found = parts(watched[1])
    assert list(found)[:4] == ["launch", "interpreter", "before torch", "import torch"]
    assert found["before torch"] > 0.3
    assert found["set-up"] > 0.8
    assert found["steps"] > 29 * 0.02
    assert found["tail"] > 0.6


def test_lines_outside_of_steps_have_their_time(watched: tuple[Path, dict[str, Any], str]) -> None:
    job = watched[1]["job"]
    before = {(one["function"], one["text"]): one["ns"] / 1e9 for one in job["before_steps"]}
    after = {one["function"]: one["ns"] / 1e9 for one in job["after_steps"]}
    assert before["prepares", "time.sleep(0.8)"] == pytest.approx(0.8, abs=0.4)
    start = sum(one["ns"] for one in job["parts"] if one["phase"] == "start") / 1e9
    assert sum(before.values()) <= start - parts(watched[1])["import torch"] + 0.1
    assert after["publishes"] > 0.3


def test_the_report_says_when_the_first_step_came(watched: tuple[Path, dict[str, Any], str]) -> None:
    _, report, said = watched
    assert "The whole job, " in said
    first_ns = report["job"]["first_step_ns"]
    assert first_ns > 0.8e9
    assert f"The first step ended after {duration(first_ns)} of " in " ".join(said.split())
