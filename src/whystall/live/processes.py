"""Threads, files and memory of a process and its children, from /proc: it reads, and the process does not notice.

``stat`` and ``schedstat`` are described in proc(5) and in the kernel's Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from whystall.errors import InputError
from whystall.live.observation import ProcessUse, ThreadUse
from whystall.run_folder.alive import DEAD

_PROC: Final = Path("/proc")
_EVERY_S: Final = 0.05
_FAMILY_EVERY: Final = 10
_ON_DISK: Final = "D"
# After the name in parentheses come the state and then numbers: children's come later.
_STATE: Final = 0
_PARENT: Final = 1


@dataclass(slots=True)
class _Seen:
    """A thread at the first and the last look, in nanoseconds on a core and waiting for one, and its states."""

    name: str
    first: tuple[float, float]
    last: tuple[float, float]
    looks: int = 0
    on_disk: int = 0


@dataclass(slots=True)
class _Process:
    resident: tuple[int, int]
    files: tuple[tuple[int, int], tuple[int, int]]
    threads: dict[int, _Seen] = field(default_factory=dict)


def require(pid: int, proc: Path = _PROC) -> None:
    """Raises `InputError` where no process has that number, or only a zombie."""
    if not (proc / str(pid)).is_dir():
        raise InputError(f"there is no process {pid}")
    told = _stat(proc / str(pid))
    if told and told[0] in DEAD:
        raise InputError(
            f"process {pid} has ended and waits for its parent to take note (a zombie): nothing runs in it"
        )


def watch(
    pid: int, seconds: float, *, proc: Path = _PROC, ended: Callable[[], bool] | None = None
) -> Mapping[int, ProcessUse]:
    """Resource use of a process and its descendants for ``seconds``, or until ``ended``. Raises `InputError`."""
    require(pid, proc)
    begin = time.monotonic()
    seen: dict[int, _Process] = {}
    below: list[int] = []
    for number in itertools.count():
        if number % _FAMILY_EVERY == 0:
            below = family(pid, proc)
        for one in below:
            _look(one, seen, proc)
        now = time.monotonic() - begin
        if now >= seconds or (ended is not None and ended()) or not (proc / str(pid)).is_dir():
            break
        time.sleep(_EVERY_S)
    if pid not in seen or not seen[pid].threads:
        raise InputError(f"the threads of process {pid} cannot be read: is it another user's?")
    return {one: _use(one, process, max(now, _EVERY_S)) for one, process in seen.items()}


def family(pid: int, proc: Path = _PROC) -> list[int]:
    """The process and all below it."""
    parents: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal() and (told := _stat(folder)) is not None:
            parents.setdefault(int(told[_PARENT]), []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += [child for child in parents.get(one, []) if child not in found]
    return found


def _look(pid: int, seen: dict[int, _Process], proc: Path) -> None:
    folder = proc / str(pid)
    resident, files = _resident(folder), _files(folder)
    process = seen.setdefault(pid, _Process((resident, resident), (files, files)))
    process.resident = (process.resident[0], resident or process.resident[1])
    process.files = (process.files[0], files if any(files) else process.files[1])
    try:
        tids = sorted(int(thread.name) for thread in (folder / "task").iterdir())
    except OSError:
        return
    for tid in tids:
        told = _stat(folder / "task" / str(tid))
        if told is None:
            continue
        times = _times(folder / "task" / str(tid), told)
        one = process.threads.setdefault(tid, _Seen(_read(folder / "task" / str(tid) / "comm").strip(), times, times))
        one.last = times
        one.looks += 1
        one.on_disk += told[_STATE] == _ON_DISK


def _use(pid: int, process: _Process, seconds: float) -> ProcessUse:
    threads = tuple(
        ThreadUse(
            tid=tid,
            name=one.name,
            on_core=(one.last[0] - one.first[0]) / seconds / 1e9,
            late=(one.last[1] - one.first[1]) / seconds / 1e9,
            on_disk=one.on_disk / max(one.looks, 1),
        )
        for tid, one in sorted(process.threads.items())
    )
    (read, written), (read_last, written_last) = process.files
    return ProcessUse(pid, threads, process.resident, read_last - read, written_last - written)


def _times(folder: Path, told: list[str]) -> tuple[float, float]:
    """Nanoseconds on a core and waiting for one; without the kernel's own count ticks, and ``nan``."""
    counted = _read(folder / "schedstat").split()
    if len(counted) >= 2:
        return float(counted[0]), float(counted[1])
    ticks = int(told[11]) + int(told[12])
    return ticks / os.sysconf("SC_CLK_TCK") * 1e9, math.nan


def _resident(folder: Path) -> int:
    fields = _read(folder / "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _files(folder: Path) -> tuple[int, int]:
    """Bytes that it had storage read and write."""
    told = dict(line.split(": ", 1) for line in _read(folder / "io").splitlines() if ": " in line)
    return int(told.get("read_bytes", 0)), int(told.get("write_bytes", 0))


def _stat(folder: Path) -> list[str] | None:
    """The fields after the name, which may contain any character; ``None`` for a process that has gone."""
    _, closed, told = _read(folder / "stat").rpartition(") ")
    return told.split() if closed else None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:  # gone, or another user's
        return ""
