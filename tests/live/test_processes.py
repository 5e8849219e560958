"""What /proc says of threads and children: of a folder that looks like it, and of a process that is there."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from whystall.errors import InputError
from whystall.live.processes import family, watch


def process(proc: Path, pid: int, parent: int, *threads: tuple[int, str, str, str]) -> Path:
    """A process with threads: number, name, state and what schedstat says."""
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a) name) ) S {parent} 1 1\n")
    (folder / "statm").write_text("900 250 10 1 0 1 0\n")
    (folder / "io").write_text("rchar: 5\nread_bytes: 4096\nwrite_bytes: 8192\n")
    for tid, name, state, counted in threads:
        task = folder / "task" / str(tid)
        task.mkdir(parents=True)
        (task / "stat").write_text(f"{tid} ({name}) {state} {parent} " + "0 " * 9 + "30 12 0 0 20 0 1 0\n")
        (task / "comm").write_text(f"{name}\n")
        if counted:
            (task / "schedstat").write_text(f"{counted}\n")
    return folder


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    process(tmp_path, 10, 1, (10, "python", "R", "1000 500 3"), (11, "pool (x)", "D", ""))
    process(tmp_path, 20, 10, (20, "worker", "S", "0 0 0"))
    process(tmp_path, 30, 20, (30, "below", "S", "0 0 0"))
    process(tmp_path, 40, 1, (40, "another", "S", "0 0 0"))
    (tmp_path / "self").mkdir()
    return tmp_path


def test_a_family_is_all_that_is_below(proc: Path) -> None:
    assert family(10, proc) == [10, 20, 30]
    assert family(40, proc) == [40]


def test_threads_are_told_by_name_state_and_time(proc: Path) -> None:
    found = watch(10, 0.0, proc=proc)
    assert set(found) == {10, 20, 30}
    first, second = found[10].threads
    assert (first.name, first.on_core, first.late, first.on_disk) == ("python", 0.0, 0.0, 0.0)
    assert (second.name, second.on_disk) == ("pool (x)", 1.0)
    assert math.isnan(second.late)  # not counted here
    assert found[10].read_bytes == found[10].written_bytes == 0


def test_what_grows_while_it_is_watched_is_counted(proc: Path) -> None:
    looks = 0

    def ended() -> bool:
        nonlocal looks
        looks += 1
        (proc / "10" / "io").write_text(f"read_bytes: {4096 + looks * 1000}\nwrite_bytes: 8192\n")
        (proc / "10" / "statm").write_text("900 260 10 1 0 1 0\n")
        return looks == 2

    found = watch(10, 60.0, proc=proc, ended=ended)
    assert found[10].read_bytes == 1000
    begin, end = found[10].resident_bytes
    assert end - begin == (end // 260) * 10


def test_a_process_that_is_not_there_is_told(proc: Path) -> None:
    with pytest.raises(InputError, match="there is no process 77"):
        watch(77, 0.0, proc=proc)


def test_a_process_that_has_ended_and_is_not_buried_is_told(proc: Path) -> None:
    (proc / "60").mkdir()
    (proc / "60" / "stat").write_text("60 (python) Z 1 60 60 0")
    with pytest.raises(InputError, match="process 60 has ended"):
        watch(60, 0.0, proc=proc)


def test_a_process_whose_threads_are_hidden_is_told(proc: Path) -> None:
    (proc / "50").mkdir()
    with pytest.raises(InputError, match="another user's"):
        watch(50, 0.0, proc=proc)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_of_a_real_process_a_thread_that_spins_is_on_a_core() -> None:
    program = "import sys\nprint(1, flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as spinning:
        assert spinning.stdout
        spinning.stdout.readline()
        found = watch(spinning.pid, 0.5)[spinning.pid]
        spinning.kill()
    (thread,) = found.threads
    assert thread.tid == spinning.pid
    assert thread.on_core > 0
    assert found.resident_bytes[0] > 1 << 20
