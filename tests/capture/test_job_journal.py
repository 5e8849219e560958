"""A job that is killed keeps the ledger of all its time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.capture.conftest import JOBS, Jobs

import whystall
from whystall.run_folder.job_journal import latest_place, read_journals, the_first

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
    report = whystall.analyze(ran.folder, cache=False)
    job = report.job
    assert job is not None
    assert job.first_step_ns is None
    slept = sum(place.ns for place in job.before_steps if place.function == "prepares") / 1e9
    assert slept == pytest.approx(1.2, abs=MOST_UNKNOWN_S)
    assert job.wall_ns == sum(part.ns for part in job.parts)
    assert {part.phase for part in job.parts} == {"start", "end"}
    assert not [part for part in job.parts if part.part in ("steps", "tail")]
    assert (ran.folder / "report.html").exists()
    assert "no training step was seen" in " ".join(ran.stderr.split())


def test_a_job_that_waits_before_its_first_step_is_explained(jobs: Jobs) -> None:
    """Its window by the clock holds no event: nothing of torch ran."""
    ran = jobs.whystall(str(JOBS / "waits_at_start.py"))
    assert ran.code == 0
    report = whystall.analyze(ran.folder, cache=False)
    assert report.job is not None
    assert report.job.first_step_ns is None
    assert "waits_at_start.py:" in report.verdict.summary
    assert "no step ended" in report.verdict.summary
    assert [one.id for one in report.findings] == ["start.set-up"]
    assert all(one.saves is None or one.saves.first_step_ns == 0 for one in report.findings), "there was no first step"
    assert "length of a step" not in whystall.render(report, "terminal", verbose=True)
    (told,) = re.findall(r"no step has ended after 10 s; for ([\d.]+) s the main thread is at (\S+)", ran.stderr)
    assert float(told[0]) <= 10
    assert told[1].endswith("waits_at_start.py:8")


def test_rank_0_stands_for_a_job_that_its_launcher_outlived(tmp_path: Path) -> None:
    launcher, *ranks = (
        {"process_unix_ns": 1}, {"rank": 1, "process_unix_ns": 2}, {"rank": 0, "process_unix_ns": 3},
    )  # fmt: skip
    for pid, numbers in enumerate([launcher, *ranks], start=7):
        (tmp_path / f"process{pid}.job.jsonl").write_text(json.dumps(numbers) + "\n")
    kept = read_journals(tmp_path)
    assert the_first(kept) is kept[9]
    assert the_first({7: kept[7]}) is kept[7]
    assert the_first({}) is None


def test_the_latest_place_lasts_since_the_thread_came_there(tmp_path: Path) -> None:
    path = tmp_path / "process7.job.jsonl"
    row = ["a.py", 3, "main", "first()", "a:first", "", "", 5_000]
    waits = ["a.py", 4, "main", "waits()", "a:waits", "", "", 700]
    lines = [[row], [[*waits[:-1], 100], row], [waits], [], [waits, [*row[:-1], 20]]]
    path.write_text("".join(json.dumps({"step": 0, "looks": one}) + "\n" for one in lines) + '{"cut')
    found = latest_place(path)
    assert found is not None
    assert (found.line, found.ns) == (4, 1_400)
    assert latest_place(tmp_path / "process8.job.jsonl") is None


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
