"""A notebook's cell that runs again replaces what it recorded; nobody else's files are touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import whystall
from whystall.capture.config import Schedule
from whystall.capture.profile_folder import prepared
from whystall.run_folder.layout import samples_name

torch = pytest.importorskip("torch")


def cell(folder: Path, steps: int) -> Path:
    """A cell of a notebook that records."""
    model = torch.nn.Linear(4, 4)
    with whystall.profile(model, output=folder, schedule=Schedule(repeat=0)) as watched:
        for _ in range(steps):
            model(torch.ones(2, 4)).sum().backward()
            watched.step()
    return watched.output


def test_a_cell_that_runs_again_replaces_its_recording(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert cell(folder, 30) == folder
    (folder / "notes.txt").write_text("mine")
    assert cell(folder, 20) == folder
    (run,) = whystall.analyze(folder, cache=False).run
    assert (run.rank, run.steps) == (0, 19)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_program_that_runs_again_replaces_it_too(tmp_path: Path) -> None:
    program = "import whystall, torch, sys; from whystall.capture.config import Schedule\n"
    program += "with whystall.profile(output=sys.argv[1], schedule=Schedule(repeat=0)) as watched:\n"
    program += "    for _ in range(12): watched.step()\n"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")], check=True)
    assert [run.rank for run in whystall.analyze(tmp_path / "run", cache=False).run] == [0]


def test_ranks_of_one_job_share_a_folder(tmp_path: Path) -> None:
    """Another process that is at work has written a rank: it stays."""
    folder = prepared(tmp_path / "run", Schedule())
    other = folder / samples_name(0)
    other.write_text(json.dumps({"schema": "whystall.samples/1", "rank": 0, "pid": os.getppid()}))
    assert prepared(folder, Schedule()) == folder
    assert other.exists()


def test_a_run_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text('{"schema": "whystall.run/1", "kind": "script"}')
    (folder / samples_name(0)).write_text("theirs")
    with pytest.warns(UserWarning, match="did not write"):
        found = cell(folder, 12)
    assert found == tmp_path / "run-2"
    assert (folder / samples_name(0)).read_text() == "theirs"
    assert len(whystall.analyze(found, cache=False).run) == 1
