"""A run whose processes were killed has ended; one of which nothing is known here has not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from whystall.run_folder.alive import Process, has_ended, is_gone, this_process

CODE = "import sys; print('there', flush=True); sys.stdin.read()"


def described(pid: int) -> dict[str, Any]:
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    mine = this_process()
    assert mine is not None
    return msgspec.to_builtins(Process(mine.place, pid, ticks))  # type: ignore[no-any-return]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def run(folder: Path, exit_code: int | None = None, ranks: tuple[Any, ...] = (), **more: Any) -> Path:
    (folder / "run.json").write_text(json.dumps({"exit_code": exit_code, **more}))
    for number, rank in enumerate(ranks):
        (folder / f"rank{number}.run.json").write_text(json.dumps(rank))
    return folder


def test_a_run_has_ended_when_its_launcher_says_so(tmp_path: Path) -> None:
    assert has_ended(run(tmp_path, 0))
    assert not has_ended(run(tmp_path))


def test_a_run_that_was_killed_has_ended(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    process = described(child.pid)
    run(tmp_path, process=process, ranks=({"ended": False, "process": process}, {"ended": True}))
    assert not has_ended(tmp_path)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}").exists()  # nobody has buried it yet
    assert has_ended(tmp_path)
    child.wait()
    assert has_ended(tmp_path)


def test_a_rank_that_goes_on_without_its_launcher_goes_on(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    gone = described(child.pid) | {"began_ticks": 1}
    assert is_gone(gone)
    run(tmp_path, process=gone, ranks=({"ended": False, "process": described(os.getpid())},))
    assert not has_ended(tmp_path)


@pytest.mark.parametrize("process", [None, 3, {"pid": 1}, {"place": "elsewhere", "pid": 1 << 22, "began_ticks": 1}])
def test_of_what_is_not_known_here_nothing_is_said(tmp_path: Path, process: Any) -> None:
    assert not is_gone(process)
    assert not has_ended(run(tmp_path, process=process))
