"""The few lines of progress while a job runs."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Cli
from tests.trace.test_following import HEAD, row

from whystall.cli import steps_so_far
from whystall.cli.console import Console
from whystall.cli.steps_so_far import StepsSoFar, line_of, waits

# Goes on until it is told to end, so that no moment of the test depends on how long something takes.
UNTIL_TOLD = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""


def test_in_a_log_there_are_three_lines_and_on_a_terminal_ever_rarer_ones() -> None:
    assert list(waits(terminal=False)) == [10, 20, 40]
    assert list(itertools.islice(waits(terminal=True), 9)) == [10, 20, 40, 80, 160, 320, 640, 640, 640]


def test_a_line_says_the_step_and_the_pace(tmp_path: Path) -> None:
    assert line_of(tmp_path, 9.96) == "no step has ended after 10 s"
    (tmp_path / "rank0.samples.jsonl").write_bytes(HEAD + b"".join(row(step, 45_000) for step in range(1_241)))
    assert line_of(tmp_path, 70.2) == "step 1,240 after 70 s, 45.0 ms each lately"


def test_the_first_line_says_where_more_is_shown(tmp_path: Path) -> None:
    said: list[str] = []
    with StepsSoFar(tmp_path, said.append, [0.0, 0.0]) as steps:
        steps._thread.join()
    first, second = said
    assert first == f"{second}; `whystall watch {tmp_path}` shows more"


def test_a_job_that_ends_first_is_told_by_its_report_alone(tmp_path: Path) -> None:
    said: list[str] = []
    with StepsSoFar(tmp_path, said.append, [3600.0]):
        pass
    assert said == []


@pytest.mark.parametrize("options", [(), ("--repeat", "0")])
def test_run_says_it_on_stderr(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(steps_so_far, "FIRST_AFTER_S", 0.01)
    note = Console.note

    def heard(console: Console, text: str) -> None:
        note(console, text)
        if "no step has ended" in text:
            (tmp_path / "heard").touch()

    monkeypatch.setattr(Console, "note", heard)
    outcome = cli("run", "-o", tmp_path / "run", *options, "--", sys.executable, "-c", UNTIL_TOLD, tmp_path / "heard")

    assert outcome.code == 0
    assert outcome.out == ""
    line = f"whystall: no step has ended after 0 s; `whystall watch {tmp_path / 'run'}` shows more"
    assert line in outcome.err.splitlines()


def test_with_q_nothing_is_said_or_looked_at(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_so_far, "StepsSoFar", None)  # it would be an internal error to begin it
    outcome = cli("run", "-q", "-o", tmp_path / "run", "--", sys.executable, "-c", "pass")

    assert (outcome.code, outcome.err) == (0, "")
