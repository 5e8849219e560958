"""A window that was held back by a job that was killed gets its name; of a job that lives, or told more, none does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whystall.run_folder.held import publish_held


@pytest.fixture
def gone() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def held(folder: Path, pid: int) -> None:
    (folder / f".rank0.trace.json.gz.{pid}").write_bytes(b"trace")
    (folder / f"rank0.run.{pid}").write_bytes(b"description")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_held_is_published(tmp_path: Path, gone: int) -> None:
    held(tmp_path, gone)
    assert [path.name for path in publish_held(tmp_path)] == ["rank0.trace.json.gz"]
    assert names(tmp_path) == ["rank0.run.json", "rank0.trace.json.gz"]
    assert publish_held(tmp_path) == []


@pytest.mark.parametrize("why", ["lives", "unfinished", "steps", "no trace", "no folder"])
def test_nothing_else_is(tmp_path: Path, gone: int, why: str) -> None:
    folder = tmp_path / "absent" if why == "no folder" else tmp_path
    if why != "no folder":
        held(folder, os.getpid() if why == "lives" else gone)
    if why == "unfinished":
        (folder / f".rank0.trace.json.gz.{gone}.json").touch()
    if why == "steps":
        (folder / "rank1.samples.jsonl").touch()
    if why == "no trace":
        (folder / f".rank0.trace.json.gz.{gone}").unlink()
    before = names(tmp_path)
    assert publish_held(folder) == []
    assert names(tmp_path) == before
