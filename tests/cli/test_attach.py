"""``whystall attach`` on a running script: what it is at, and that it goes on as it would have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from whystall.errors import InputError
from whystall.live import stacks
from whystall.live.stacks import spy

if TYPE_CHECKING:
    from .conftest import Cli

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
JOB = """
import sys

def slow(rounds):
    total = 0
    for number in range(rounds):
        total = (total * 7 + number) % 1_000_003
    return total

print(slow(1000), flush=True)
while True:
    slow(50_000)
    if sys.stdin in __import__("select").select([sys.stdin], [], [], 0)[0]:
        break
print(slow(2000))
"""


@pytest.fixture(autouse=True)
def _same_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests after these have not to be slower."""
    monkeypatch.setattr(os, "nice", lambda by: by)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "slow_job.py"
    path.write_text(JOB)
    return path


@pytest.mark.skipif(spy() is None, reason="py-spy is not installed: pip install 'whystall[attach]'")
def test_a_job_that_runs_is_told_by_its_line_and_left_alone(cli: Cli, script: Path) -> None:
    with subprocess.Popen(
        [sys.executable, script, "--password", "hunter2"],
        cwd=script.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout
        assert job.stdin
        first = job.stdout.readline()
        outcome = cli("attach", str(job.pid), "--seconds", "2", "--json")
        said = cli("attach", str(job.pid), "--seconds", "1")
        job.stdin.close()
        rest = job.stdout.read()
    assert job.returncode == 0
    alone = subprocess.run(
        [sys.executable, script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert first + rest == alone.stdout
    assert outcome.code == said.code == 0
    found = json.loads(outcome.out)
    assert (found["class"], found["cause"]) == ("python", "host.python")
    assert found["share"] > 0.5
    assert (found["code"][0]["file"], found["code"][0]["line"]) in {("slow_job.py", 6), ("slow_job.py", 7)}
    assert "slow_job.py:" in said.out
    assert said.err.startswith(f"Watching process {job.pid} for 1 s.\nInvisible from outside")
    assert "hunter2" not in outcome.out + said.out


def test_without_py_spy_threads_alone_are_told(cli: Cli, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "spy", lambda: None)
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout
        assert job.stdin
        job.stdout.readline()
        outcome = cli("attach", str(job.pid), "--seconds", "1")
        job.stdin.close()
        job.stdout.read()
    assert outcome.code == 0
    assert "Its main thread" in outcome.out
    assert "pip install 'whystall[attach]'" in outcome.err


def test_what_cannot_be_seen_is_said_before_the_look(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(pid: int, *_: object, **__: object) -> None:
        raise InputError(f"process {pid} was looked at")

    monkeypatch.setattr("whystall.live.attach.attach", look)
    outcome = cli("attach", str(os.getpid()))

    *before, last = outcome.err.splitlines()
    assert last == f"whystall: process {os.getpid()} was looked at"
    assert any(line.startswith("Invisible from outside: the GPU's activity") for line in before)
    assert any("`whystall run SCRIPT`" in line for line in before)
    quiet = cli("attach", str(os.getpid()), "-q")
    assert quiet.err == f"{last}\n"


def test_a_process_that_is_not_there_is_told(cli: Cli) -> None:
    outcome = cli("attach", "4194305")
    assert outcome.code == 3
    assert outcome.err == "whystall: there is no process 4194305\n"


@pytest.mark.parametrize("seconds", ["0", "601", "nan"])
def test_a_time_that_is_none_is_told(cli: Cli, seconds: str) -> None:
    assert cli("attach", "1", "--seconds", seconds).code == 2
