"""What is said while a job still runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import whystall
from whystall._api import demo_recording
from whystall.cli.so_far import SoFar


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder as it is once a window was recorded: the launcher has said little yet."""
    shutil.copy(demo_recording(), tmp_path / "rank0.trace.json.gz")
    (tmp_path / "run.json").write_text(json.dumps({"schema": "whystall.run/1", "exit_code": None, "ranks": []}))
    (tmp_path / "rank0.run.json").write_text(json.dumps({"rank": 0, "ended": False, "facts": {"cores_allowed": 2}}))
    return tmp_path


def said_of(folder: Path, *, until_sure: bool = True) -> tuple[list[str], int]:
    said: list[str] = []
    sure: list[str] = []
    with SoFar(folder, said.append, (lambda: sure.append("")) if until_sure else None, after_s=0.0) as so_far:
        so_far._thread.join()
    return said, len(sure)


def test_the_verdict_on_what_is_there_is_said_once(folder: Path) -> None:
    verdict = whystall.analyze(folder, cache=False).verdict
    said, sure = said_of(folder)
    assert said == [f"so far: {verdict.summary}"]
    assert sure == (verdict.cause is not None and verdict.confidence >= 0.8)
    assert said_of(folder, until_sure=False) == (said, 0)


def test_of_a_recording_that_cannot_be_read_nothing_is_said(folder: Path) -> None:
    (folder / "rank0.trace.json.gz").write_bytes(b"no trace")
    assert said_of(folder) == ([], 0)


@pytest.mark.parametrize("described", [True, False])
def test_a_job_that_ends_first_has_its_report_alone(folder: Path, *, described: bool) -> None:
    if not described:
        (folder / "rank0.run.json").unlink()
    said: list[str] = []
    with SoFar(folder, said.append, after_s=3600.0 if described else 0.0):
        pass
    assert said == []


def test_what_ranks_said_while_they_ran_counts_where_nobody_joined_it(folder: Path) -> None:
    from whystall.run_folder.facts import read_run_file

    assert [rank.cores_allowed for rank in read_run_file(folder / "run.json")] == [2]
    (folder / "run.json").write_text(json.dumps({"schema": "of something else", "ranks": []}))
    assert read_run_file(folder / "run.json") == []
