"""Whose files a run folder holds.

A run is kept unless told otherwise, and what no run of whystall's wrote is never touched.
"""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

import pytest

from whystall.cli.run import _claim
from whystall.errors import UsageError
from whystall.run_folder.description import RunDescription, encode, is_run

LONG_AGO_S = 1_000_000_000
MARK = encode(
    RunDescription(whystall="1", kind="script", command="x.py", exit_code=None, began_unix_ns=0, schedule=None)
)
OURS = ["rank0.samples.jsonl", "rank0.trace.json.gz", "rank0.window1.trace.json.gz", "rank11.run.json"]
OF_THE_RUN = ["report.json", "report.html", "experiments.json", ".rank0.trace.json.gz.77", "rank0.run.77"]
USERS = [
    "resnet.py",
    "requirements.txt",
    "results.csv",
    "ranking.py",
    "rank0.txt",
    "report.py",
    "rank.json",
    "rank0.json",
    "rank1.csv",
    "reports.html",
    "report.json.bak",
    "rank01.samples.jsonl",
    "rank-1.samples.jsonl",
    "rankings.run.json",
    "old.rank0.samples.jsonl",
    "rank0.samples.jsonl.orig",
    "rank0.trace.json",
    "rank0.windowx.trace.json.gz",
]


def written(folder: Path, name: str, text: bytes = b"theirs", *, old: bool = True) -> Path:
    path = folder / name
    path.write_bytes(text)
    if old:
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return path


def claim(folder: Path, *, force: bool) -> None:
    _claim(folder, Namespace(force=force), MARK)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=["alone", "workers"], autouse=True)
def launch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1" if request.param == "alone" else "2")
    return str(request.param)


def test_an_earlier_run_is_kept_unless_force_is_given(tmp_path: Path) -> None:
    old = [written(tmp_path, name) for name in OURS + OF_THE_RUN]
    written(tmp_path, "run.json", MARK)
    with pytest.raises(UsageError, match="holds a run already"):
        claim(tmp_path, force=False)
    assert all(path.exists() for path in old)
    claim(tmp_path, force=True)
    assert contents(tmp_path) == {"run.json": MARK}


def test_force_leaves_what_the_user_keeps_beside_a_run(tmp_path: Path) -> None:
    for name in [*USERS, *OURS]:
        written(tmp_path, name)
    (tmp_path / "rank0").mkdir()
    written(tmp_path / "rank0", "rank0.samples.jsonl")
    written(tmp_path, "run.json", MARK)
    claim(tmp_path, force=True)
    assert contents(tmp_path) == {**dict.fromkeys([*USERS, "rank0.samples.jsonl"], b"theirs"), "run.json": MARK}
    assert not (tmp_path / "rank0.samples.jsonl").exists()


def test_names_that_only_look_like_a_runs_are_in_nobodys_way(tmp_path: Path) -> None:
    for name in USERS:
        written(tmp_path, name)
    claim(tmp_path, force=False)
    assert contents(tmp_path) == {**dict.fromkeys(USERS, b"theirs"), "run.json": MARK}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", [*OURS, *OF_THE_RUN])
@pytest.mark.parametrize(
    "marker", [None, b"{}", b"[1]", b'{"schema": "theirs/1"}', b'{"schema": "whystall.run/1"', b"\xff"]
)
def test_a_folder_that_is_no_run_keeps_everything(tmp_path: Path, name: str, marker: bytes | None, force: bool) -> None:
    written(tmp_path, name)
    if marker is not None:
        written(tmp_path, "run.json", marker)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="nothing was removed"):
        claim(tmp_path, force=force)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("force", [False, True])
def test_somebody_elses_run_json_is_not_replaced(tmp_path: Path, force: bool) -> None:
    written(tmp_path, "run.json", b'{"schema": "runner/3"}', old=False)
    with pytest.raises(UsageError, match=r"holds run\.json"):
        claim(tmp_path, force=force)
    assert contents(tmp_path) == {"run.json": b'{"schema": "runner/3"}'}


@pytest.mark.parametrize("name", ["report.html", "rank0.trace.json.gz"])
def test_a_link_is_nothing_that_a_run_wrote(tmp_path: Path, name: str) -> None:
    target = written(tmp_path, "precious")
    folder = tmp_path / "run"
    folder.mkdir()
    written(folder, "run.json", MARK)
    (folder / name).symlink_to(target)
    with pytest.raises(UsageError, match="nothing was removed"):
        claim(folder, force=True)
    assert (folder / name).is_symlink()
    assert target.read_bytes() == b"theirs"


def test_a_link_to_a_runs_mark_marks_nothing(tmp_path: Path) -> None:
    real, folder = tmp_path / "real", tmp_path / "folder"
    real.mkdir()
    folder.mkdir()
    (folder / "run.json").symlink_to(written(real, "run.json", MARK))
    written(folder, "rank0.samples.jsonl")
    with pytest.raises(UsageError, match="nothing was removed"):
        claim(folder, force=True)
    assert (folder / "rank0.samples.jsonl").exists()


def test_a_folder_with_the_name_of_a_file_stays(tmp_path: Path) -> None:
    written(tmp_path, "run.json", MARK)
    (tmp_path / "rank0.trace.json.gz").mkdir()
    with pytest.raises(UsageError, match="nothing was removed"):
        claim(tmp_path, force=True)
    assert (tmp_path / "rank0.trace.json.gz").is_dir()


def test_the_working_folder_may_be_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in USERS:
        written(tmp_path, name)
    claim(Path(), force=True)
    written(tmp_path, "rank0.samples.jsonl")
    os.utime(tmp_path / "run.json", (LONG_AGO_S, LONG_AGO_S))
    claim(Path(), force=True)
    assert contents(tmp_path) == {**dict.fromkeys(USERS, b"theirs"), "run.json": MARK}


def test_what_another_worker_of_the_launch_has_written_stays(tmp_path: Path, launch: str) -> None:
    old = written(tmp_path, "rank7.samples.jsonl")
    written(tmp_path, "run.json", MARK)
    claim(tmp_path, force=True)
    new = written(tmp_path, "rank1.samples.jsonl", old=False)
    if launch == "alone":
        with pytest.raises(UsageError, match="holds a run already"):
            claim(tmp_path, force=False)
        return
    claim(tmp_path, force=False)
    claim(tmp_path, force=True)
    assert new.exists()
    assert not old.exists()


def test_the_first_workers_mark_stays(tmp_path: Path, launch: str) -> None:
    claim(tmp_path, force=False)
    done = MARK.replace(b"null", b"0")
    written(tmp_path, "run.json", done, old=False)
    claim(tmp_path, force=False)
    assert (tmp_path / "run.json").read_bytes() == (done if launch == "workers" else MARK)
    assert is_run(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        claim(written(tmp_path, "file") / "folder", force=False)
