"""How ``whystall run`` ends, as a shell sees it: as the job would, whatever streams it was started with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WHYSTALL = [sys.executable, "-m", "whystall"]


def run(home: Path, job: str, *, closing: str = "", options: str = "-o run") -> subprocess.CompletedProcess[bytes]:
    (home / "job.py").write_text(job)
    command = f'exec "$0" "$@" {closing}'
    words = [*WHYSTALL, "run", "-q", *options.split(), "job.py"]
    return subprocess.run(["sh", "-c", command, *words], cwd=home, capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGABRT])
def test_it_ends_by_the_signal_that_ended_the_job(tmp_path: Path, number: signal.Signals) -> None:
    usual = f"signal.signal({number}, signal.SIG_DFL); " if number != signal.SIGKILL else ""
    ended = run(tmp_path, f"import os, signal; {usual}os.kill(os.getpid(), {number})")
    assert ended.returncode == -number
    assert json.loads((tmp_path / "run" / "run.json").read_text())["exit_code"] == 128 + number
    assert not list(tmp_path.glob("core*"))


@pytest.mark.parametrize("closing", ["2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_changes_nothing(tmp_path: Path, closing: str) -> None:
    ended = run(tmp_path, "open('ran', 'w').close(); import sys; sys.exit(4)", closing=closing)
    assert (ended.returncode, (tmp_path / "ran").exists()) == (4, True)


def test_notes_go_nowhere_where_there_is_no_standard_error(tmp_path: Path) -> None:
    steps = "for _ in range(3): torch.optim.SGD([torch.ones(2)]).step()"
    job = f"import torch, shutil\nshutil.rmtree('run')\n{steps}\nprint('result')"
    assert run(tmp_path, job, closing="2>&-").stdout == b"result\n"


@pytest.mark.parametrize("name", ["SIGALRM", "SIGXCPU", "SIGUSR1", "SIGVTALRM", "SIGRTMIN"])
def test_signals_to_the_launcher_reach_the_job(tmp_path: Path, name: str) -> None:
    number = getattr(signal, name)
    (tmp_path / "job.py").write_text(
        f"import signal, sys, time\nsignal.signal({int(number)}, lambda *_: sys.exit(9))\n"
        "open('ready', 'w').close()\ntime.sleep(60)"
    )
    launcher = subprocess.Popen(
        [*WHYSTALL, "run", "-q", "-o", "run", "job.py"], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
        assert launcher.poll() is None
    os.kill(launcher.pid, number)
    assert launcher.wait(60) == 9


def test_runs_that_begin_in_the_same_second_have_a_folder_each(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import sys; sys.exit(int(sys.argv[1]))")
    words = [*WHYSTALL, "run", "-q", "job.py"]
    started = [subprocess.Popen([*words, str(n)], cwd=tmp_path, stderr=subprocess.DEVNULL) for n in range(4)]
    assert [one.wait(120) for one in started] == [0, 1, 2, 3]
    codes = [json.loads(path.read_text())["exit_code"] for path in (tmp_path / "whystall-runs").glob("*/run.json")]
    assert sorted(codes) == [0, 1, 2, 3]


@pytest.mark.parametrize("options", ["-o run", "--force -o run"])
def test_a_folder_in_which_a_run_goes_on_is_left_alone(tmp_path: Path, options: str) -> None:
    (tmp_path / "job.py").write_text("open('ready', 'w').close(); input()")
    words = [*WHYSTALL, "run", "-q", "-o", "run", "job.py"]
    first = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
        assert first.poll() is None
    second = run(tmp_path, "", options=options)
    assert (second.returncode, b"goes on" in second.stderr) == (2, True)
    first.communicate(b"\n", timeout=60)
    assert first.returncode == 0
    assert run(tmp_path, "", options="--force -o run").returncode == 0


def test_a_job_with_a_process_group_of_its_own_is_ended(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import os, time; os.setpgrp(); open('ready', 'w').close(); time.sleep(60)")
    words = [*WHYSTALL, "run", "-q", "-o", "run", "job.py"]
    launcher = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
        assert launcher.poll() is None
    os.killpg(launcher.pid, signal.SIGTERM)
    assert launcher.wait(30) == -signal.SIGTERM


def test_a_file_where_runs_go_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "whystall-runs").write_text("")
    ended = run(tmp_path, "open('ran', 'w')", options="")
    assert (ended.returncode, (tmp_path / "ran").exists()) == (2, False)
    assert b"whystall-runs cannot be written" in ended.stderr
