"""A job whose imports take long is not broken by being watched, with any Python of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.capture.conftest import JOBS, Jobs

from whystall.capture.config import CaptureConfig
from whystall.capture.launch import watched_environment

JOB = str(JOBS / "slow_imports.py")
LONG_S = "20"
# Of the other Pythons; nobody waits twenty seconds for each of five in every run of the tests.
OTHERS_S = os.environ.get("WHYSTALL_SLOW_IMPORTS_S", "2")


def pythons() -> list[str]:
    """The Pythons of this machine that start, from 3.9 on, one of each version."""
    here = Path(sys.base_prefix)
    found = [
        *map(str, sorted(here.parent.glob("*/bin/python3"))),
        *(shutil.which(f"python3.{n}") for n in range(9, 16)),
    ]
    asked: dict[tuple[int, ...], str] = {}
    for path in filter(None, found):
        said = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, check=False
        )
        version = tuple(map(int, said.stdout.split()))
        if version >= (3, 9):
            asked.setdefault(version, path)
    return [asked[version] for version in sorted(asked)]


def test_imports_that_take_long_after_torch_stay_whole(jobs: Jobs) -> None:
    ran = jobs.whystall(JOB, "0.1", LONG_S)
    assert ran.code == 0, ran.stderr
    assert ran.stdout == "tables True\ntrained\n"
    (rank,) = ran.ranks()
    assert (rank["steps"], rank["not_recorded"]) == (6, {})


def test_nothing_is_touched_however_soon_modules_are_looked_for(jobs: Jobs) -> None:
    ran = jobs.watched(JOB, "0.1", "3", optimizer_within_s=0.0)
    assert (ran.code, ran.stdout) == (0, "tables True\ntrained\n"), ran.stderr
    assert json.loads((ran.folder / "rank0.run.json").read_text())["not_recorded"] == {}


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.replace(os.sep, " ").strip())
def test_every_python_runs_the_job_to_its_end(jobs: Jobs, python: str) -> None:
    """Also those that whystall cannot run in, and a torch that is none."""
    (jobs.home / "torch.py").write_text("__version__ = '0.0'\n")
    config = CaptureConfig(folder=str(jobs.folder), optimizer_within_s=0.0)
    environment = watched_environment(config, jobs.environment(PYTHONPATH=str(jobs.home)))
    ran = jobs.command(python, JOB, "1", OTHERS_S, **environment)
    assert (ran.code, ran.stdout) == (0, "tables True\n"), ran.stderr
    assert "Traceback" not in ran.stderr
