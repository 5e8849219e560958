"""Watches a running process for some seconds and finds the class of cause that takes its time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any, Final

from whystall.disk import reading
from whystall.errors import InputError
from whystall.live import stacks
from whystall.live.kinds import LineOf
from whystall.live.observation import Look, Observation, Stack
from whystall.live.processes import watch
from whystall.report.names import clean
from whystall.vocabulary.frames import Frame, owner

_MOST_FILE_BYTES: Final = 4 << 20
_LONGEST_LINE: Final = 120
# A thread with this few distinct stacks waits for others: the training thread is another one.
_FEW_STACKS: Final = 3


@dataclass(frozen=True, slots=True)
class Attached:
    """An observation, and the text of its lines of code."""

    seen: Observation
    line_of: LineOf


def attach(pid: int, seconds: float, *, program: str | None) -> Attached:
    """Observes a process and its descendants for ``seconds``; without ``program`` (py-spy) without stacks.

    Raises `InputError` where there is no such process, or where observing it is not allowed.
    """
    names = _Names(pid)
    if program is None:
        processes = watch(pid, seconds)
        seen = Observation(pid, seconds, _cores(pid), processes, pid, [], [], {})
        return Attached(seen, names.line_of)
    raw: list[list[dict[str, Any]]] = []
    with stacks.recording(program, pid, seconds) as recorded:
        ended = False
        looking = Thread(target=lambda: raw.extend(stacks.looks(program, pid, lambda: ended)), daemon=True)
        looking.start()
        try:
            processes = watch(pid, seconds)
        finally:
            ended = True
            looking.join()
        found = recorded()
    own = {tid: names.shortened(one) for (process, tid), one in found.items() if process == pid}
    if not own:
        raise InputError(f"process {pid} runs no Python that py-spy knows")
    training = _training(own, pid)
    seen = Observation(
        pid=pid,
        seconds=seconds,
        cores=_cores(pid),
        processes=processes,
        training=training,
        ticks=[stack for stack in own[training] if stack],  # stacks of an ending thread are empty
        looks=[names.short_look(look) for threads in raw if (look := stacks.look_of(threads, training)) is not None],
        children={process: names.shortened(one) for (process, tid), one in found.items() if process == tid != pid},
    )
    return Attached(seen, names.line_of)


def _training(own: Mapping[int, Sequence[Stack]], pid: int) -> int:
    """The main thread, unless that only waits: then the one whose stacks differ most."""
    distinct = {tid: len(set(one)) for tid, one in own.items()}
    if distinct.get(pid, 0) >= _FEW_STACKS:
        return pid
    return max(distinct, key=lambda tid: (distinct[tid], tid == pid))


def _cores(pid: int) -> int:
    try:
        return len(os.sched_getaffinity(pid))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


class _Names:
    """Displayed names of files: relative to the process's folder if below it, else the name alone."""

    def __init__(self, pid: int) -> None:
        try:
            self._folder = str(Path(f"/proc/{pid}/cwd").readlink())
        except OSError:
            self._folder = ""
        self._full: dict[str, str] = {}
        self._lines: Callable[[str], list[str]] = lru_cache(maxsize=256)(_lines_of)

    def shortened(self, found: Sequence[Stack]) -> list[Stack]:
        return [tuple(map(self._short, stack)) for stack in found]

    def short_look(self, look: Look) -> Look:
        return Look(tuple(map(self._short, look.stack)), look.ran, look.holder)

    def _short(self, frame: Frame) -> Frame:
        if owner(frame.file) != "user" or frame.file.startswith("<"):
            return frame
        full = os.path.join(self._folder, frame.file)  # noqa: PTH118 - names of another process, never opened by themselves
        inside = self._folder and full.startswith(self._folder + os.sep)
        short = os.path.relpath(full, self._folder) if inside else os.path.basename(full)  # noqa: PTH119 - likewise
        told = clean(short, 200)
        self._full.setdefault(told, full)
        return Frame(told, frame.line, clean(frame.symbol, 120))

    def line_of(self, frame: Frame) -> str | None:
        """The text of a line, if its file can be read; it may have changed since the process read it."""
        lines = self._lines(self._full.get(frame.file, frame.file))
        text = lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""
        return clean(text, _LONGEST_LINE) or None


def _lines_of(file: str) -> list[str]:
    path = Path(file)
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            return []
        return reading.content(path).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return []
