"""``whystall fix`` on real jobs: what is kept, and that nothing of the user's is changed unasked.

The jobs sleep where they are slow, so that other work on the machine decides nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.remedies.jobs import JOB

from whystall.cli import main


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(JOB)
    monkeypatch.chdir(folder)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "whystall-runs" not in path.parts
    }


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # it has ended
        return ""


def fix(*words: str) -> int:
    return main(["fix", "--steps", "20", *words])


def result(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "fix.json").read_text())
    return found


@pytest.mark.alone
def test_a_slow_loader_gets_workers_and_the_patch_applies(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(job)
    assert fix("--most", "1", "-o", "found", "train.py") == 0
    out = capsys.readouterr().out
    assert " times as fast (" in out.splitlines()[0]
    assert "num_workers=" in out
    assert {name: data for name, data in content(job).items() if not name.startswith("found/")} == before
    subprocess.run(["git", "apply", "found/fix.patch"], check=True, cwd=job)
    assert "persistent_workers=True" in (job / "train.py").read_text()
    subprocess.run([sys.executable, "train.py"], check=True, cwd=job)


@pytest.mark.alone
def test_apply_writes_what_was_kept(job: Path) -> None:
    assert fix("--most", "1", "--apply", "-o", "found", "train.py") == 0
    assert "persistent_workers=True" in (job / "train.py").read_text()


@pytest.mark.alone  # the exit status is checked only once the times are conclusive
def test_a_patch_of_somebody_else_that_breaks_the_job_is_rejected(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = JOB.replace("time.sleep(0.005)  # a slow disk", "pass").replace(
        "    # the end", "    raise SystemExit(3)"
    )
    (job / "other.py").write_text(changed)
    done = subprocess.run(
        ["git", "diff", "--no-index", "train.py", "other.py"], cwd=job, capture_output=True, text=True, check=False
    )
    (job / "mine.patch").write_text(done.stdout.replace("b/other.py", "b/train.py"))
    (job / "other.py").unlink()
    before = content(job)
    assert fix("--patch", "mine.patch", "-o", "found", "train.py") == 1
    assert "the whole run ended with exit code 3" in capsys.readouterr().out
    assert {name: data for name, data in content(job).items() if not name.startswith("found/")} == before


@pytest.mark.alone
def test_a_run_whose_script_has_an_edit_for_one_of_its_causes_names_the_command(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first cause is Python's sleep, which has no edit; the second is the loader.
    (job / "train.py").write_text(JOB.replace("time.sleep(0.02)", "time.sleep(0.04)"))
    assert main(["run", "-o", "run", "train.py"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "next: whystall fix run"
    assert fix("--budget", "0s", "-o", "found", "run") == 0
    assert result(job / "found")["ended_because"] == "the time is used up"


def test_a_job_that_fails_is_said_and_left_alone(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "train.py").write_text("raise ValueError('no data')\n")
    assert fix("-o", "found", "train.py") == 1
    told = capsys.readouterr().err
    assert "the command as given ended with exit code 1" in told
    assert "ValueError: no data" in told


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_nothing_behind(job: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "temporary").mkdir()
    before = content(job)
    words = [sys.executable, "-m", "whystall", "fix", "-o", str(tmp_path / "found"), "train.py"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    with subprocess.Popen(words, cwd=job, env=environment, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert any("trying workers" in line for line in running.stderr)
        running.send_signal(number)
        told = running.stderr.read()
    assert running.returncode == code
    copies = str(tmp_path / "temporary")
    assert not [one for one in Path("/proc").glob("[0-9]*/cwd") if _target(one).startswith(copies)]
    assert "Traceback" not in told
    assert not list((tmp_path / "temporary").glob("whystall-*"))
    assert content(job) == before


def test_two_at_once_are_refused(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "found").mkdir()
    held = os.open(job / "found" / "fixes.jsonl", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        assert fix("-o", "found", "train.py") == 2
    finally:
        os.close(held)
    assert "another whystall fix works in found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--budget", "soon", "train.py"], "--budget takes a time"),
        (["--steps", "3", "train.py"], "--steps must be at least"),
        (["--most", "0", "train.py"], "--most must be at least"),
        (["--timeout", "0", "train.py"], "--timeout must be above 0"),
        (["-o", "train.py/x", "train.py"], "cannot be written"),
        (["--patch", "missing.patch", "train.py"], "missing.patch"),
        (["missing.py"], "no such script"),
    ],
)
def test_what_makes_no_sense_is_said(
    job: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(job)
    assert main(["fix", *words]) in (2, 3)
    assert told in capsys.readouterr().err
    assert content(job) == before


def test_a_patch_that_does_not_apply_is_said(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "mine.patch").write_text("--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-nothing\n+something\n")
    assert fix("--patch", "mine.patch", "train.py") == 3
    assert "does not apply to the program" in capsys.readouterr().err


def test_a_run_without_its_whole_command_asks_for_it(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "run").mkdir()
    description = {"schema": "whystall.run/1", "kind": "script", "command": "train.py", "arguments": 2}
    (job / "run" / "run.json").write_text(json.dumps(description))
    assert fix("run") == 2
    assert "does not hold the whole command" in capsys.readouterr().err
