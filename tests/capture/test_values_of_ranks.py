"""Work done again or for nothing in a job of two ranks, by the tensors that operators are given."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.capture.conftest import JOBS, TIMEOUT_S, Jobs, Ran

from whystall.analysis.dataflow.chosen_calls import chosen_calls
from whystall.trace.readers.execution_trace import read_execution_trace

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.alone
KINDS = (
    "work done again within the same step",
    "work that gives the same in each step",
    "work whose results nothing reads",
)


def launched(what: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, str(JOBS / "two_ranks.py"), what]


def watched(folder: Path, what: str) -> Ran:
    folder.mkdir()
    jobs = Jobs(folder)
    return jobs.whystall("--", *launched(what), options=("--values", "--force"))


def found(ran: Ran) -> dict[str, Any]:
    """The findings of work done again or for nothing, by the description of their evidence."""
    report = json.loads((ran.folder / "report.json").read_text())
    findings = [one for one in report["findings"] if one["id"] == "compute.redundant-work"]
    return {kind: one for one in findings for line in one["evidence"] for kind in KINDS if line["what"].endswith(kind)}


def test_two_ranks_are_shown_what_they_compute_in_vain(tmp_path: Path) -> None:
    ran = watched(tmp_path / "planted", "planted")
    assert ran.code == 0, ran.stderr
    # On a machine that others share a few milliseconds may be anybody's, and steps with looks no longer than others.
    if set(found(ran)) != set(KINDS) or not ran.ranks()[0]["overhead"]["looked_ns"]:
        shutil.rmtree(tmp_path / "planted")
        ran = watched(tmp_path / "planted", "planted")
    values = ran.folder / "rank0.values.json.gz"
    assert chosen_calls(read_execution_trace(values)).steps == 3
    assert not (ran.folder / "rank1.values.json.gz").exists()
    assert set(found(ran)) == set(KINDS)
    assert ran.ranks()[0]["overhead"]["looked_ns"] > 0

    home = tmp_path / "unwatched"
    home.mkdir()
    environment = Jobs(home).environment()
    alone = subprocess.run(
        launched("planted"), cwd=home, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert [line for line in ran.stdout.splitlines() if line in alone.stdout] == alone.stdout.splitlines()
    assert (tmp_path / "planted" / "model.pt").read_bytes() == (home / "model.pt").read_bytes()


def test_a_job_without_such_work_is_told_of_none(tmp_path: Path) -> None:
    ran = watched(tmp_path / "healthy", "healthy")
    assert ran.code == 0, ran.stderr
    assert (ran.folder / "rank0.values.json.gz").is_file()
    assert found(ran) == {}
