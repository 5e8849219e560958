"""`--compile` keeps the log of torch's compiler in the run folder, and the account agrees with torch's counters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.capture.conftest import JOBS, Jobs

from whystall.cli import main

pytest.importorskip("torch")
JOB = JOBS / "compiled_twice.py"
COUNTS = """
import runpy
runpy.run_path({job!r})
from torch._dynamo.utils import counters
print(sum(counters["graph_break"].values()))
"""


def test_the_account_has_the_graph_breaks_that_torch_counts(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    ran = jobs.whystall(str(JOB), options=("--compile",))
    assert ran.code == 0, ran.stderr
    assert "Compilation took" in ran.stderr
    logs = ran.folder / "compile"
    assert oct(logs.stat().st_mode & 0o777) == "0o700"
    assert main(["compile", str(logs), "--json"]) == 0
    (process,) = json.loads(capsys.readouterr().out)["processes"]
    counted = subprocess.run(
        [sys.executable, "-c", COUNTS.format(job=str(JOB))], capture_output=True, text=True, check=True
    )
    assert sum(one["times"] for one in process["breaks"]) == int(counted.stdout.split()[-1]) > 0
    assert {one["place"]["line"] for one in process["breaks"]} == {7}


def test_a_log_that_the_user_has_written_elsewhere_stays_there(jobs: Jobs, tmp_path: Path) -> None:
    ran = jobs.whystall(str(JOB), options=("--compile",), TORCH_TRACE=str(tmp_path / "own"))
    assert ran.code == 0, ran.stderr
    assert not (ran.folder / "compile").exists()
    assert list((tmp_path / "own").iterdir())
