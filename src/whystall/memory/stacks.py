"""Facts from the call stack of an allocation: marks of torch's own functions, and the line of the request."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntFlag, auto
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.code_owner import Owner, is_entry, is_python, owner_of, without_root
from whystall.memory.native_frames import NATIVE, name_of
from whystall.memory.snapshot import Frame, Frames

__all__ = ["Mark", "Site", "Stacks", "read_stacks"]

_ORIGIN: Final = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9}), in ([^\n]{1,200})')
_LONGEST_MATCHED: Final = 4096
# Frames of torch through which every call passes.
_PASSED: Final = re.compile(
    r"(^|/)torch/(nn/modules/module|_ops|_compile|utils/_contextlib|_dynamo/eval_frame|overrides|autograd/function|"
    r"autograd/graph|_tensor|_inductor/utils|_inductor/output_code)\.py$"
)
_COMMAND_LINE: Final = "<string>"
_NO_SYMBOL: Final = "no symbol was recorded"
_NOTEBOOK: Final = re.compile(r"^.*/(?=ipykernel_\d+/|ipython-input-)")


class Mark(IntFlag):
    """Facts about an allocation from torch's own functions on its stack (see ``frame_marks.toml``)."""

    OPTIMIZER = auto()
    OPTIMIZER_STATE = auto()
    OPTIMIZER_WORK = auto()
    BACKWARD = auto()
    ENGINE = auto()
    GRADIENT = auto()
    FORWARD = auto()
    OPERATION = auto()
    CHECKPOINT = auto()
    RECOMPUTE = auto()
    PARAMETERS = auto()
    COMMUNICATION = auto()
    INPUT = auto()
    WORKSPACE = auto()
    LOSS = auto()
    SAVED = auto()


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A line that requested memory. ``within`` is the line of a library that it reached through a module's call."""

    file: str
    line: int | None
    function: str
    within: str | None = None
    owner: Owner = Owner.USER

    @property
    def place(self) -> str:
        """The file and the line."""
        return self.file if self.line is None else f"{self.file}:{self.line}"

    @property
    def is_line(self) -> bool:
        """Whether it is a line of a model or a loop, where something can be changed."""
        return self.owner <= Owner.LIBRARY


@dataclass(frozen=True, slots=True)
class Stacks:
    """By the stack's number: its marks, the number of its site (-1: no frame), and that of its Python frames.

    ``sites`` are distinct. Stacks with the same Python frames have the same ``calls``, for any C++ frames
    around them.
    """

    marks: NDArray[np.int64]
    site: NDArray[np.int64]
    calls: NDArray[np.int64]
    sites: tuple[Site, ...]

    def marks_of(self, stack: NDArray[np.signedinteger]) -> NDArray[np.int64]:
        """The marks of stacks; none for -1."""
        found: NDArray[np.int64] = np.append(self.marks, 0)[stack]
        return found

    def sites_of(self, stack: NDArray[np.signedinteger]) -> NDArray[np.int64]:
        """The sites of stacks; -1 for -1."""
        found: NDArray[np.int64] = np.append(self.site, -1)[stack]
        return found

    def calls_of(self, stack: NDArray[np.signedinteger]) -> NDArray[np.int64]:
        """The Python frames of stacks by their numbers; -1 for -1."""
        found: NDArray[np.int64] = np.append(self.calls, -1)[stack]
        return found

    def site_of(self, stack: int) -> Site | None:
        """The site of one stack."""
        number = int(self.site[stack]) if stack >= 0 else -1
        return self.sites[number] if number >= 0 else None


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


class _Flat:
    """The frames of all stacks in a row, and where each stack begins; every stack has a frame at least."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames.frames
        self.rows = frames.stack_frames
        self.starts = np.append(0, frames.stack_ends[:-1]).astype(np.int64)
        self.lengths = np.diff(np.append(self.starts, len(self.rows)))
        self.place = np.arange(len(self.rows)) - np.repeat(self.starts, self.lengths)
        self.python = np.array([is_python(frame.file, frame.line, frame.name) for frame in self.frames], np.bool_)
        self.marks = np.array([_marks(frame) for frame in self.frames], np.int64)

    def least(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The least value of each stack's frames."""
        found: NDArray[np.int64] = np.minimum.reduceat(values, self.starts)
        return found

    def most(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The largest value of each stack's frames."""
        found: NDArray[np.int64] = np.maximum.reduceat(values, self.starts)
        return found

    def innermost(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The place of each stack's innermost chosen frame; the number of frames if none is chosen."""
        return self.least(np.where(chosen[self.rows], self.place, len(self.rows)))


def read_stacks(frames: Frames) -> Stacks:
    """The facts of each stack.

    The site is the innermost line of the user's; else of a library; else of torch; else the facts in the C++ frames.
    """
    if not len(frames):
        nothing = np.zeros(0, np.int64)
        return Stacks(nothing, nothing, nothing, ())
    flat = _Flat(frames)
    marks = _stack_marks(flat)
    sites, number = _sites(flat)
    return Stacks(marks, number, _calls(flat), sites)


def _stack_marks(flat: _Flat) -> NDArray[np.int64]:
    marks: NDArray[np.int64] = np.bitwise_or.reduceat(flat.marks[flat.rows], flat.starts)
    marks[_callbacks(flat)] |= Mark.BACKWARD | Mark.ENGINE
    return marks


def _callbacks(flat: _Flat) -> NDArray[np.bool_]:
    """The stacks whose outermost Python frame begins no program and no thread, where others' does.

    Among allocating threads only autograd's own calls back into Python.
    """
    entry = np.array([is_entry(frame.name) for frame in flat.frames], np.bool_)
    outermost = flat.most(np.where(flat.python[flat.rows], flat.place, -1))
    has = outermost >= 0
    root = flat.rows[flat.starts + np.maximum(outermost, 0)]
    begins = has & entry[root]
    found: NDArray[np.bool_] = has & ~entry[root] & bool(begins.any())
    return found & np.array([_calls_back(flat.frames[int(frame)]) for frame in root], np.bool_)


def _calls_back(root: Frame) -> bool:
    """Whether a thread of autograd's can begin with a frame: a hook, or the backward function of the user's own."""
    file = root.file.replace("\\", "/")
    return owner_of(file) in (Owner.TORCH, Owner.LIBRARY) or "backward" in root.name or "hook" in root.name


def _marks(frame: Frame) -> int:
    file = frame.file[-_LONGEST_MATCHED:].replace("\\", "/")
    name = frame.name[:_LONGEST_MATCHED]
    marks = 0
    for rule in _rules():
        if rule.file.search(file) and rule.function.search(name):
            marks |= rule.mark
    return marks


def _calls(flat: _Flat) -> NDArray[np.int64]:
    """A number for each distinct row of Python frames, of the frames of C++ where there are none."""
    weight = np.random.default_rng(0).integers(1, 1 << 62, len(flat.frames), np.int64).astype(np.uint64) | np.uint64(1)
    python = flat.python[flat.rows]
    python |= np.repeat(flat.most(python.astype(np.int64)) == 0, flat.lengths)
    seen = np.cumsum(python)
    before: NDArray[np.int64] = seen[flat.starts] - python[flat.starts]
    place: NDArray[np.uint64] = (seen - np.repeat(before, flat.lengths)).astype(np.uint64)
    mixed = np.where(python, weight[flat.rows] * (place * np.uint64(2) + np.uint64(1)), np.uint64(0))
    numbers: NDArray[np.int64] = np.unique(np.add.reduceat(mixed, flat.starts), return_inverse=True)[1].astype(np.int64)
    return numbers


# --- sites ------------------------------------------------------------------------------------------------------------


def _sites(flat: _Flat) -> tuple[tuple[Site, ...], NDArray[np.int64]]:
    """The distinct sites, and the number of each stack's."""
    resolved = [_resolved(frame) for frame in flat.frames]
    rank = np.array(
        [_rank(frame, python=bool(is_)) for frame, is_ in zip(resolved, flat.python, strict=True)], np.int64
    )
    width = len(flat.rows) + 1
    best = flat.least(rank[flat.rows] * width + flat.place)
    place: NDArray[np.int64] = best % width
    native = best // width >= _RANKS[Owner.NATIVE]
    within = _within(flat, rank == _RANKS[Owner.LIBRARY], place, best // width)
    chosen = np.where(native, -1, flat.rows[flat.starts + place].astype(np.int64))
    keys, first, numbers = np.unique(
        np.column_stack([chosen, within, np.where(native, np.arange(len(best)), -1)]),
        axis=0, return_index=True, return_inverse=True,
    )  # fmt: skip
    shorten = _Shortening(resolved[int(frame)] for frame in np.unique(chosen[chosen >= 0]))
    found = [
        _native_site(flat, int(stack))
        if frame < 0
        else shorten.site(resolved[frame], resolved[inner] if inner >= 0 else None)
        for (frame, inner, _), stack in zip(keys.tolist(), first.tolist(), strict=True)
    ]
    distinct = {site: number for number, site in enumerate(dict.fromkeys(found))}
    return tuple(distinct), np.array([distinct[site] for site in found], np.int64)[numbers.reshape(-1)]


def _within(
    flat: _Flat, library: NDArray[np.bool_], place: NDArray[np.int64], rank: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The frame of a library that the user's line reached through a module's call, as a number; -1 where none."""
    inner, call = flat.innermost(library), flat.innermost((flat.marks & Mark.FORWARD) > 0)
    reached = (rank == _RANKS[Owner.USER]) & (inner < place) & (call < place)
    return np.where(reached, flat.rows[flat.starts + np.where(reached, inner, 0)].astype(np.int64), -1)


# The lower the rank, the better the frame identifies the request.
_RANKS: Final = {Owner.USER: 0, Owner.LIBRARY: 1, Owner.TORCH: 3, Owner.PLUMBING: 5, Owner.NATIVE: 6}


def _rank(frame: Frame, *, python: bool) -> int:
    if not python:
        return _RANKS[Owner.NATIVE]
    if frame.file == _COMMAND_LINE:
        return 2  # python -c, or the start of a process that another one made
    owner = owner_of(frame.file)
    return _RANKS[owner] + (owner is Owner.TORCH and _PASSED.search(frame.file.replace("\\", "/")) is not None)


def _resolved(frame: Frame) -> Frame:
    """The frame; of compiled code the line that it was compiled from."""
    found = _ORIGIN.findall(frame.origin[-100_000:]) if frame.origin else []
    if found:
        file, line, name = found[-1]
        return Frame(name, file, int(line))
    return frame


def _native_site(flat: _Flat, stack: int) -> Site:
    begin = int(flat.starts[stack])
    names = [flat.frames[int(frame)].name for frame in flat.rows[begin : begin + int(flat.lengths[stack])]]
    return Site(NATIVE, None, name_of(names) or _NO_SYMBOL, None, Owner.NATIVE)


class _Shortening:
    """Removes uninformative folders: those where packages are installed, and those that all the user's files share."""

    def __init__(self, frames: Iterable[Frame]) -> None:
        folders = [without_root(frame.file).split("/")[:-1] for frame in frames if _is_in_folder(frame.file)]
        alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))
        self.shared = "".join(f"{parts[0]}/" for parts in alike)

    def site(self, frame: Frame, inner: Frame | None) -> Site:
        """The site of a frame."""
        within = None if inner is None else " ".join(self._words(inner))
        return Site(self.file(frame.file), frame.line, frame.name, within, owner_of(frame.file))

    def file(self, file: str) -> str:
        """The file's name as it is shown."""
        short = _NOTEBOOK.sub("", without_root(file))
        return short.removeprefix(self.shared) if owner_of(file) is Owner.USER else short

    def _words(self, frame: Frame) -> Iterator[str]:
        yield f"{self.file(frame.file)}:{frame.line}"
        yield frame.name


def _is_in_folder(file: str) -> bool:
    return owner_of(file) is Owner.USER and "/" in file.replace("\\", "/") and not file.startswith("<") and (
        _NOTEBOOK.search(file.replace("\\", "/")) is None
    )  # fmt: skip
