"""Takes a folder for a run.

It removes only files of an earlier run, by exact name, in a folder that its run.json marks.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whystall.disk.writing import Over, write
from whystall.errors import UsageError
from whystall.run_folder.alive import began_ticks, is_alive
from whystall.run_folder.description import is_run, read_document
from whystall.run_folder.layout import RUN_JSON, is_written_by_a_run

_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Occupied:
    """Files in a folder where a run would write.

    Files of an earlier run, and files that no run of ours has put there.
    """

    earlier: tuple[Path, ...]
    foreign: tuple[Path, ...]


def occupied(folder: Path, since_s: float | None) -> Occupied:
    """The files in the way.

    Files written from ``since_s`` on (seconds since 1970) belong to the same launch.
    """
    marked = is_run(folder)
    earlier: list[Path] = []
    foreign: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name == RUN_JSON:
            foreign += [] if marked else [path]
        elif is_written_by_a_run(path.name):
            with contextlib.suppress(FileNotFoundError):  # another worker was quicker to remove it
                found = path.lstat()
                if not stat.S_ISREG(found.st_mode):
                    foreign.append(path)
                elif since_s is None or found.st_mtime < since_s:
                    (earlier if marked else foreign).append(path)
    return Occupied(tuple(earlier), tuple(foreign))


def claim(folder: Path, *, force: bool, since_s: float | None, marker: bytes) -> None:
    """Makes a folder, or clears that of an earlier run with ``force``, and marks it as a run.

    Raises `UsageError` for a run that is to be kept, and, ``force`` or not, for files in the way that no run of ours
    wrote.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if since_s is None and _goes_on(folder):
            raise UsageError(f"a run goes on in {folder}: choose another folder with -o, or wait for its end")
        found = occupied(folder, since_s)
        if found.foreign:
            raise UsageError(
                f"{folder} holds {_named(found.foreign)}, and its {RUN_JSON} does not say that whystall wrote it: "
                "nothing was "
                "removed; choose another folder with -o, or move the file away"
            )
        if found.earlier and not force:
            raise UsageError(f"{folder} holds a run already: choose another with -o, or overwrite it with --force")
        _mark(folder, marker, since_s)
        for path in found.earlier:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None


def _goes_on(folder: Path) -> bool:
    """Whether another launcher of this machine is still at work in a folder."""
    run = read_document(folder / RUN_JSON) if is_run(folder) else {}
    return run.get("exit_code") is None and is_alive(run.get("process"))


def _mark(folder: Path, marker: bytes, since_s: float | None) -> None:
    """Marks a folder as a run at one stroke, since other workers of the launch may be looking; once for all of them."""
    path = folder / RUN_JSON
    if since_s is not None and path.exists() and path.stat().st_mtime >= since_s:
        return
    write(path, lambda stream: stream.write(marker), over=Over.OUR_OWN)


def _named(paths: tuple[Path, ...]) -> str:
    names = [path.name for path in paths]
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def started_s(process: int) -> float:
    """The start of a process, in seconds since 1970; 0 where the kernel does not report it."""
    ticks = began_ticks(process)
    try:
        booted = next(line for line in Path("/proc/stat").read_text("ascii").splitlines() if line.startswith("btime"))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0.0
    return 0.0 if ticks is None else int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
