"""``whystall export`` of tables and timelines from a folder."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

import whystall

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(whystall.demo_recording(), folder / "rank0.trace.json.gz")
    for name in ("run.json", "rank0.run.json", "report.json"):
        (folder / name).write_text("{}")
    return folder


def test_the_one_trace_of_a_run_folder_is_exported(cli: Cli, run_folder: Path, tmp_path: Path) -> None:
    assert cli("export", run_folder, "--format", "csv", "-o", "tables").code == 0
    assert (tmp_path / "tables" / "operators.csv").stat().st_size > 0
    assert cli("export", run_folder, "--format", "perfetto", "-o", "timeline.json").code == 0
    assert json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]


def test_of_several_traces_one_must_be_named(cli: Cli, run_folder: Path) -> None:
    shutil.copy(run_folder / "rank0.trace.json.gz", run_folder / "rank1.trace.json.gz")
    outcome = cli("export", run_folder, "--format", "csv", "-o", "tables")
    assert outcome.code == 2
    assert "holds 2: name one, such as" in outcome.err


def test_steps_of_a_watched_run_as_csv(tmp_path: Path, cli: Cli) -> None:
    head = {"schema": "whystall.samples/1", "rank": 0, "columns": ["step", "duration_us", "flags"]}
    for rank in (0, 1):
        lines = [json.dumps({**head, "rank": rank}), "[1,500,0]", "[2,700,1]", "[3,600,2]"]
        (tmp_path / f"rank{rank}.samples.jsonl").write_text("\n".join(lines))
    path = tmp_path / "steps.csv"
    assert cli("export", str(tmp_path), "--format", "steps", "-o", str(path)).code == 0
    rows = path.read_text().splitlines()
    assert rows[0] == "rank,step,duration_us,profiled,skipped"
    assert rows[1:4] == ["0,1,500,false,false", "0,2,700,true,false", "0,3,600,false,true"]
    assert len(rows) == 7
    assert cli("export", str(tmp_path), "--format", "steps", "-o", str(path)).code == 2  # it exists
    (tmp_path / "empty").mkdir()
    outcome = cli("export", str(tmp_path / "empty"), "--format", "steps")
    assert outcome.code == 3
    assert "holds no samples of a watched run" in outcome.err
