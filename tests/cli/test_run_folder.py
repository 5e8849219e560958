"""Whose files a run folder holds: a run is kept unless told otherwise, and workers of one launch do not disturb each other."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

import pytest

from whystall.cli.run import _claim
from whystall.errors import UsageError

LONG_AGO_S = 1_000_000_000


def written(folder: Path, name: str, *, old: bool) -> Path:
    path = folder / name
    path.write_text("{}")
    if old:
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return path


@pytest.fixture(params=["alone", "workers"])
def launch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1" if request.param == "alone" else "2")
    return str(request.param)


@pytest.mark.usefixtures("launch")
def test_an_earlier_run_is_kept_unless_force_is_given(tmp_path: Path) -> None:
    old = [written(tmp_path, name, old=True) for name in ("rank0.samples.jsonl", "report.json", "run.json")]
    with pytest.raises(UsageError, match="holds a run already"):
        _claim(tmp_path, Namespace(force=False))
    assert all(path.exists() for path in old)
    _claim(tmp_path, Namespace(force=True))
    assert not any(path.exists() for path in old)


def test_what_another_worker_of_the_launch_has_written_stays(tmp_path: Path, launch: str) -> None:
    new = written(tmp_path, "rank1.samples.jsonl", old=False)
    if launch == "alone":
        with pytest.raises(UsageError):
            _claim(tmp_path, Namespace(force=False))
        return
    _claim(tmp_path, Namespace(force=False))
    _claim(tmp_path, Namespace(force=True))
    assert new.exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        _claim(written(tmp_path, "file", old=False) / "folder", Namespace(force=False))
