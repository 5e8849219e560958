"""A window that was held back by a job that was killed gets its name; of a job that lives, or told more, none does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from whystall.run_folder.alive import Process, this_process
from whystall.run_folder.held import publish_held


@pytest.fixture
def gone() -> Process:
    """A process that has ended, as itself described it."""
    describe = "import msgspec, whystall.run_folder.alive as a; print(msgspec.json.encode(a.this_process()).decode())"
    done = subprocess.run([sys.executable, "-c", describe], capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=Process)


def held(folder: Path, process: Process) -> None:
    (folder / f".rank0.trace.json.gz.{process.pid}").write_bytes(b"trace")
    (folder / f"rank0.run.{process.pid}").write_bytes(msgspec.json.encode({"rank": 0, "process": process}))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_held_is_published(tmp_path: Path, gone: Process) -> None:
    held(tmp_path, gone)
    assert [path.name for path in publish_held(tmp_path)] == ["rank0.trace.json.gz"]
    assert names(tmp_path) == ["rank0.run.json", "rank0.trace.json.gz"]
    assert publish_held(tmp_path) == []


@pytest.mark.parametrize("why", ["lives", "unfinished", "steps", "no trace", "no folder"])
def test_nothing_else_is(tmp_path: Path, gone: Process, why: str) -> None:
    folder = tmp_path / "absent" if why == "no folder" else tmp_path
    if why != "no folder":
        held(folder, this_process() or gone if why == "lives" else gone)
    if why == "unfinished":
        (folder / f".rank0.trace.json.gz.{gone.pid}.json").touch()
    if why == "steps":
        (folder / "rank1.samples.jsonl").touch()
    if why == "no trace":
        (folder / f".rank0.trace.json.gz.{gone.pid}").unlink()
    before = names(tmp_path)
    assert publish_held(folder) == []
    assert names(tmp_path) == before
