"""What the call stack of an allocation tells: marks of torch's own functions on it, and the line that asked."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from enum import IntFlag, auto
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.snapshot import Frame, Frames
from whystall.vocabulary.frames import owner

__all__ = ["Mark", "Site", "Stacks", "read_stacks"]

_ORIGIN: Final = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9}), in ([^\n]{1,200})')
_INSTALLED: Final = re.compile(r"^.*[/\\](?:site-packages|dist-packages|lib[/\\]python\d[\d.]*)[/\\]")
_LONGEST_MATCHED: Final = 4096


class Mark(IntFlag):
    """What torch's own functions on a stack say of an allocation (see ``frame_marks.toml``)."""

    OPTIMIZER = auto()
    OPTIMIZER_STATE = auto()
    BACKWARD = auto()
    GRADIENT = auto()
    FORWARD = auto()
    RECOMPUTE = auto()
    PARAMETERS = auto()
    COMMUNICATION = auto()
    INPUT = auto()


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A line that asked for memory."""

    file: str
    line: int | None
    function: str


@dataclass(frozen=True, slots=True)
class Stacks:
    """By the stack's number: its marks, and the number of its site (-1: no frame). ``sites`` are distinct."""

    marks: NDArray[np.int64]
    site: NDArray[np.int64]
    sites: tuple[Site, ...]

    def marks_of(self, stack: NDArray[np.signedinteger]) -> NDArray[np.int64]:
        """The marks of stacks; none for -1."""
        found: NDArray[np.int64] = np.append(self.marks, 0)[stack]
        return found

    def sites_of(self, stack: NDArray[np.signedinteger]) -> NDArray[np.int64]:
        """The sites of stacks; -1 for -1."""
        found: NDArray[np.int64] = np.append(self.site, -1)[stack]
        return found


@dataclass(frozen=True, slots=True)
class _Rule:
    mark: Mark
    file: re.Pattern[str]
    function: re.Pattern[str]


@cache
def _rules() -> tuple[_Rule, ...]:
    text = (files("whystall.memory") / "frame_marks.toml").read_text("utf-8")
    return tuple(
        _Rule(
            Mark[rule["mark"].upper().replace("-", "_")],
            re.compile(rule.get("file", "")),
            re.compile(rule.get("function", "")),
        )
        for rule in tomllib.loads(text)["rule"]
    )


def read_stacks(frames: Frames) -> Stacks:
    """What each stack tells. The site is the innermost line of the user's; else of a library; else the innermost."""
    if not len(frames):
        nothing = np.zeros(0, np.int64)
        return Stacks(nothing, nothing, ())
    resolved = [_resolved(frame) for frame in frames.frames]
    starts = np.append(0, frames.stack_ends[:-1]).astype(np.int64)
    marks = np.array([_marks(frame) for frame in frames.frames], np.int64)
    rank = np.array([_rank(frame) for frame in resolved], np.int64)
    flat = frames.stack_frames
    place = np.arange(len(flat)) - np.repeat(starts, np.diff(np.append(starts, len(flat))))
    best = np.minimum.reduceat(rank[flat] * (len(flat) + 1) + place, starts) % (len(flat) + 1)
    chosen, numbers = np.unique(flat[starts + best], return_inverse=True)
    sites = _short([resolved[int(frame)] for frame in chosen])
    distinct = {site: number for number, site in enumerate(dict.fromkeys(sites))}
    of_frame = np.array([distinct[site] for site in sites], np.int64)
    return Stacks(np.bitwise_or.reduceat(marks[flat], starts), of_frame[numbers], tuple(distinct))


def _marks(frame: Frame) -> int:
    file = frame.file[-_LONGEST_MATCHED:].replace("\\", "/")
    name = frame.name[:_LONGEST_MATCHED]
    marks = 0
    for rule in _rules():
        if rule.file.search(file) and rule.function.search(name):
            marks |= rule.mark
    return marks


def _resolved(frame: Frame) -> Site:
    """The frame's line; of compiled code the line that it was compiled from."""
    found = _ORIGIN.findall(frame.origin[-100_000:]) if frame.origin else []
    if found:
        file, line, name = found[-1]
        return Site(file, int(line), name)
    return Site(frame.file, frame.line, frame.name)


def _rank(site: Site) -> int:
    """How well a line says who asked: 0 is the user's own, 3 nothing that Python knows."""
    if site.line is None or not site.file.endswith(".py"):
        return 0 if site.file.startswith(("<ipython-input-", "<stdin>")) else 3
    return {"user": 0, "library": 1, "nobody": 2}[owner(site.file)]


def _short(sites: list[Site]) -> list[Site]:
    """The sites without the folders that say nothing: where packages are installed, and what the user's files share."""
    folders = [site.file.split("/")[:-1] for site in sites if _rank(site) == 0 and "/" in site.file]
    alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))
    shared = "".join(f"{parts[0]}/" for parts in alike)
    return [
        Site(
            _INSTALLED.sub("", site.file.removeprefix(shared) if _rank(site) == 0 else site.file),
            site.line,
            site.function,
        )
        for site in sites
    ]
