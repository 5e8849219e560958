"""Follows the samples of a run while they are written: reads only lines added since the last look."""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path
from typing import Any, Final

import numpy as np

from whystall.disk import reading
from whystall.json_text import NotJsonError, parse_json
from whystall.run_folder.samples import DISTURBED, MOST_RANK, MOST_US, SCHEMA, unix_ns
from whystall.trace.errors import InputError

_LONGEST_LINE: Final = 1 << 16
_MOST_AT_ONCE: Final = 64 << 20
_FIRST_STEPS: Final = 5
"""The first steps load, compile and allocate: they are no pace."""
_KEPT: Final = 8192
"""Number of first and of latest steps to keep: some seconds of steps of a millisecond."""
_KEPT_TICKS: Final = 256
_BLOCK_US: Final = 5_000_000
_IN_A_ROW: Final = 4
_FEWEST_IN_BLOCK: Final = 8
_FEWEST_BLOCKS: Final = 6
_QUARTILES_APART: Final = 1.349
"""Interquartile range of a normal distribution, in standard deviations."""
_PART: Final = re.compile(r"^(input|forward|backward|optimizer|save|gc)_us$")
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets in which steps are counted."""


Parts = dict[str, np.ndarray[Any, np.dtype[np.int64]]]


class Followed:
    """The samples of one rank written so far: the number of steps, the first and the latest, a histogram."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rank = 0
        self.steps = 0
        self.total_s = 0.0
        self.began_unix_ns = 0
        """When the job began to be watched; 0: not known."""
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        """Steps by length: up to each of `BOUNDS_S`, and longer ones."""
        self._columns: list[str] = []
        self._offset = self._inode = 0
        self._latest_step = -1
        self._first: list[list[int]] = []
        self._latest: deque[list[int]] = deque(maxlen=_KEPT)
        self._block: list[int] = []
        self._block_us = 0
        self._paces: deque[float] = deque(maxlen=_KEPT)
        self._ticks: deque[tuple[int, int, int]] = deque(maxlen=_KEPT_TICKS)

    def look(self) -> None:
        """Reads new lines. Raises `InputError` where the file cannot be read or holds no samples."""
        try:
            with reading.opened(self.path) as file:
                found = os.fstat(file.fileno())
                if (
                    found.st_ino != self._inode or found.st_size < self._offset
                ):  # a job in production has replaced it by a shorter one
                    self._inode, self._offset, self._columns = found.st_ino, 0, []
                file.seek(self._offset)
                data = file.read(_MOST_AT_ONCE)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error})") from None
        whole = data.rfind(b"\n") + 1
        self._offset += whole if whole or len(data) < _MOST_AT_ONCE else len(data)
        for line in data[:whole].split(b"\n"):
            if line and len(line) <= _LONGEST_LINE:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            value: Any = parse_json(line)
        except NotJsonError:
            return
        if not self._columns:
            self._head(value)
        elif isinstance(value, list) and len(value) == len(self._columns):
            self._step(value)
        elif isinstance(value, dict):
            self._machine(value)

    def _machine(self, value: dict[str, Any]) -> None:
        """Keeps when a line was written, and the ticks until then of the machine's cores and of the job."""
        at, ticks = value.get("at_unix_ns"), value.get("cpu_ticks")
        if unix_ns(at) and isinstance(ticks, list) and [unix_ns(one) for one in ticks] == ticks and len(ticks) == 2:
            self._ticks.append((unix_ns(at), ticks[0], ticks[1]))

    def latest_ticks(self, lasting_s: float) -> list[tuple[int, int, int]]:
        """Machine ticks of the latest seconds: time (ns since 1970), busy ticks, and the job's own ticks."""
        last = self._ticks[-1][0] if self._ticks else 0
        return [one for one in self._ticks if one[0] >= last - lasting_s * 1e9]

    def _head(self, value: Any) -> None:
        columns = value.get("columns") if isinstance(value, dict) else None
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            columns = []
        if not {"duration_us", "flags"} <= set(columns) or value.get("schema") != SCHEMA:
            raise InputError(f"{self.path.name} holds no samples of whystall")
        self._columns = columns
        self.rank = value["rank"] if type(value.get("rank")) is int and 0 <= value["rank"] < MOST_RANK else 0
        self.began_unix_ns = unix_ns(value.get("began_unix_ns"))

    def _step(self, row: list[Any]) -> None:
        named = dict(zip(self._columns, row, strict=True))
        duration, flags = named["duration_us"], named["flags"]
        step = named.get("step")
        if type(step) is int and step <= self._latest_step:
            return  # read before
        if type(duration) is not int or type(flags) is not int or not 0 <= duration < MOST_US:
            return
        self.steps += 1
        self._latest_step = step if type(step) is int else -1
        if flags & DISTURBED:
            return
        seconds = duration / 1e6
        self.total_s += seconds
        self.buckets[next((at for at, bound in enumerate(BOUNDS_S) if seconds <= bound), len(BOUNDS_S))] += 1
        if self.steps <= _FIRST_STEPS:
            return
        parts = [
            value if type(value) is int and abs(value) < MOST_US else 0
            for name, value in named.items()
            if _PART.match(name)
        ]
        kept = [duration, *parts]
        if len(self._first) < _KEPT:
            self._first.append(kept)
        self._latest.append(kept)
        self._block.append(duration)
        self._block_us += duration
        if self._block_us >= _BLOCK_US and len(self._block) >= _FEWEST_IN_BLOCK:
            whole = len(self._block) // _IN_A_ROW * _IN_A_ROW
            in_a_row = np.array(self._block[:whole]).reshape(-1, _IN_A_ROW).mean(axis=1)
            self._paces.append(float(np.median(in_a_row)) * 1000)
            self._block, self._block_us = [], 0

    def usual(self) -> tuple[float, float] | None:
        """The usual pace of five seconds (of a few steps in a row, ns), and its spread, as a share.

        That is one standard deviation. ``None`` for a job that has not run for long; the last ten seconds are left out.
        """
        paces = list(self._paces)[:-2]
        if len(paces) < _FEWEST_BLOCKS:
            return None
        low, middle, high = np.quantile(paces, (0.25, 0.5, 0.75))
        return float(middle), float((high - low) / _QUARTILES_APART / max(middle, 1.0))

    def first(self, lasting_s: float, fewest: int) -> Parts:
        """The first steady steps that together took ``lasting_s``, at least ``fewest``, in nanoseconds by part."""
        return self._parts(self._first[: _count(self._first, lasting_s, fewest)])

    def latest(self, lasting_s: float, fewest: int) -> Parts:
        """The latest steps that together took ``lasting_s``, at least ``fewest``, in nanoseconds by part."""
        rows = list(self._latest)
        return self._parts(rows[-_count(rows[::-1], lasting_s, fewest) :])

    def _parts(self, rows: list[list[int]]) -> Parts:
        names = ["step", *(name.removesuffix("_us") for name in self._columns if _PART.match(name))]
        table = np.array(list(rows), np.int64).reshape(-1, len(names)) * 1000
        return {name: table[:, at] for at, name in enumerate(names)}


def _count(rows: list[list[int]], lasting_s: float, fewest: int) -> int:
    """How many of the first rows together took ``lasting_s``; at least ``fewest``."""
    ends = np.cumsum([row[0] for row in rows])
    return max(int(np.searchsorted(ends, lasting_s * 1e6)) + 1, fewest)
