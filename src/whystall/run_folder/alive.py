"""Whether the processes of a run are still there: one that was killed, with its launcher, leaves no end behind."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from whystall.run_folder.description import read_document
from whystall.run_folder.layout import RUN_JSON, rank_files

_PROC: Final = Path("/proc")
_BEGAN: Final = 19
DEAD: Final = frozenset({"Z", "X", "x"})
"""The state letters of a process of which only its number is left."""


class Process(msgspec.Struct, frozen=True):
    """A process by its unique identity: the scope of its number, the number, and its begin."""

    place: str
    """The machine since it was started, and the space in which processes are numbered, as a digest."""
    pid: int
    began_ticks: int


def this_process() -> Process | None:
    """The calling process; ``None`` where the kernel does not report it."""
    place, began = _place(), began_ticks(os.getpid())
    return Process(place, os.getpid(), began) if place is not None and began is not None else None


def has_ended(folder: Path) -> bool:
    """Whether a run has ended: its launcher wrote so, or it and all known ranks are gone from this machine.

    A run on another machine, and a run that names no process, counts as not ended: its state is unknown.
    """
    run = read_document(folder / RUN_JSON)
    if run.get("exit_code") is not None:
        return True
    ranks = [read_document(path) for path in rank_files(folder, "description")]
    return is_gone(run.get("process")) and all(is_gone(rank.get("process")) for rank in ranks if not rank.get("ended"))


def is_gone(process: object) -> bool:
    """Whether a process that was described on this machine is no more; false where that is not known."""
    known = _here(process)
    return known is not None and began_ticks(known.pid) != known.began_ticks


def is_alive(process: object) -> bool:
    """Whether a process that was described on this machine still is; false where that is not known."""
    known = _here(process)
    return known is not None and began_ticks(known.pid) == known.began_ticks


def _here(process: object) -> Process | None:
    """A described process, if it was described on this machine."""
    if not isinstance(process, Mapping):
        return None
    try:
        known = msgspec.convert(process, Process)
    except msgspec.ValidationError:
        return None
    return known if known.place == _place() else None


def _place() -> str | None:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_bytes().strip()
        numbered = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return None
    return hashlib.blake2b(boot + str(numbered).encode(), digest_size=8).hexdigest()


def began_ticks(pid: int) -> int | None:
    """The begin of a living process, in the kernel's ticks; ``None`` for a dead one or a zombie."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in DEAD:
        return None
    return int(fields[_BEGAN])


def stat_fields(pid: int) -> list[str] | None:
    """The kernel's fields of a process after its name, the state letter first; ``None`` without it."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("ascii", "replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > _BEGAN else None
