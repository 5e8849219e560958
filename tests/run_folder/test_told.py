"""What a run says of its own end, of what recording cost it, and of why there is no recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whystall.run_folder.told import told

SCHEDULE = {"wait": 1, "warmup": 1, "active": 3, "repeat": 1}


def run(folder: Path, *, code: int | None = 0, schedule: Any = SCHEDULE, **rank: Any) -> list[str]:
    values = {"rank": 0, "steps": 100, "traces": ["rank0.trace.json.gz"], "notes": [], "ended_unix_ns": 1, **rank}
    about = {"schema": "whystall.run/1", "exit_code": code, "schedule": schedule, "ranks": [values]}
    (folder / "run.json").write_text(json.dumps(about))
    return told(folder)


def test_a_run_that_went_well_says_nothing(tmp_path: Path) -> None:
    assert run(tmp_path) == []
    assert told(tmp_path / "none") == []


@pytest.mark.parametrize("text", ["", "[]", '{"ranks": 3, "exit_code": "x"}', '{"ranks": [3, {"overhead": 7}]}'])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert told(tmp_path) == []


def test_a_crash_is_told_with_its_line_and_a_kill_with_its_signal(tmp_path: Path) -> None:
    (crash,) = run(tmp_path, code=1, ended_by="ValueError at train.py:9")
    assert crash.startswith("The job ended with exit code 1 (ValueError at train.py:9), after 100 steps")
    (kill,) = run(tmp_path, code=137, ended_unix_ns=None)  # the count is that of its last description
    assert "exit code 137 (SIGKILL), after at least 100 steps" in kill
    (early,) = run(tmp_path, code=143, ended_unix_ns=None, steps=1, traces=[])
    assert "after at least 1 step:" in early
    assert "exit code 3, after 100 steps" in run(tmp_path, code=3)[0]


def test_of_several_ranks_the_first_that_failed_is_told(tmp_path: Path) -> None:
    """The others fail because it is gone."""
    ranks = [
        {"rank": 0, "steps": 40, "ended_by": "RuntimeError at train.py:20", "ended_unix_ns": 2_000},
        {"rank": 1, "steps": 40, "ended_by": "ValueError at data.py:9", "ended_unix_ns": 1_000},
        {"rank": 2, "steps": 40, "ended_unix_ns": 500},
    ]
    about = {"schema": "whystall.run/1", "exit_code": 1, "schedule": SCHEDULE, "ranks": ranks}
    (tmp_path / "run.json").write_text(json.dumps(about))
    assert told(tmp_path)[0].startswith("The job ended with exit code 1 (rank 1: ValueError at data.py:9), after 40")


def test_a_window_of_long_steps_begins_sooner(tmp_path: Path) -> None:
    rank = {"rank": 0, "steps": 6, "traces": [], "ended_unix_ns": 1, "overhead": {"watched_ns": 36_000_000_000}}
    about = {"schema": "whystall.run/1", "exit_code": 0, "schedule": SCHEDULE, "ranks": [rank]}
    (tmp_path / "run.json").write_text(json.dumps(about))
    assert "a window takes at least 9" in told(tmp_path)[0]
    (tmp_path / "run.json").write_text(json.dumps(about | {"ranks": [rank | {"overhead": {"watched_ns": 6_000}}]}))
    assert "a window takes at least 11" in told(tmp_path)[0]


@pytest.mark.parametrize(("steps", "is_short"), [(1, True), (6, True), (10, True), (40, False)])
def test_a_job_too_short_for_a_window_is_told_how_long_it_takes(tmp_path: Path, steps: int, *, is_short: bool) -> None:
    found = run(tmp_path, steps=steps, traces=[])
    assert ["Too short to be recorded" in one for one in found] == [True] * is_short
    if is_short:
        # One step has no beginning, one pays for late starts, four must agree, one waits, one warms up, three are kept.
        assert f"the job made {steps} step{'s' * (steps > 1)}, and a window takes at least 11" in found[0]
    assert run(tmp_path, steps=steps, traces=[], schedule={**SCHEDULE, "repeat": 0}) == []


def test_how_long_the_job_stood_still_is_told_with_its_share(tmp_path: Path) -> None:
    (found,) = run(tmp_path, overhead={"paused_ns": 11_600_000_000, "watched_ns": 232_000_000_000})
    assert found.startswith("Recording held rank 0 up for 11.6 s in all, 5.0% of the time it was watched")
    assert run(tmp_path, overhead={"paused_ns": 20_000_000, "watched_ns": 10**9}) == []


def test_notes_are_told_once(tmp_path: Path) -> None:
    assert run(tmp_path, notes=["the job is busy", "the job is busy", 3]) == ["The job is busy"]
