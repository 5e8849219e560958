"""Dependencies between a device's stages, as the arrows that torch's JSON has for the edges of CUDA graphs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

_ARROW: Final = "ac2g"
_FIRST_NUMBER: Final = 1 << 40
"""torch's arrows between device events have numbers from there on (torch/profiler/_cuspy/trace.py)."""
_MOST: Final = 1 << 24


class Stage(NamedTuple):
    """Where and when a stage ran."""

    device: int
    stream: int
    ts_ns: int
    duration_ns: int


class Waits:
    """Stages by number, and their dependencies; a number that two stages share belongs to neither."""

    def __init__(self) -> None:
        self._stages = array("q")
        self._edges: list[tuple[int, Stage]] = []

    def take(self, number: int, stage: Stage, awaited: Sequence[int]) -> None:
        """A stage with its number, 0 for none, and the numbers of those that it waits for."""
        row = (number, *stage)
        if number and len(self._stages) < _MOST * len(row) and all(0 <= value < 1 << 62 for value in row):
            self._stages.extend(row)
        if len(self._edges) < _MOST:
            self._edges += [(one, stage) for one in awaited]

    def arrows(self) -> Iterator[bytes]:
        """For each wait the beginning and the end of an arrow, as events."""
        awaited = np.unique(np.array([one for one, _ in self._edges if one < 1 << 62], np.int64))
        rows = np.frombuffer(self._stages, np.int64).reshape(-1, 1 + len(Stage._fields))
        rows = rows[np.isin(rows[:, 0], awaited)]
        numbers, first, times = np.unique(rows[:, 0], return_index=True, return_counts=True)
        own = np.flatnonzero(times == 1)
        stages = dict(zip(numbers[own].tolist(), rows[first[own], 1:].tolist(), strict=True))
        for number, (one, stage) in enumerate(self._edges, _FIRST_NUMBER):
            if one in stages:
                before = Stage(*stages[one])
                yield _end(number, "s", before, before.ts_ns + before.duration_ns)
                yield _end(number, "f", stage, stage.ts_ns, bp="e")


def _end(number: int, phase: str, stage: Stage, ts_ns: int, **more: Any) -> bytes:
    where = {"ph": phase, "id": number, "pid": stage.device, "tid": stage.stream, "cat": _ARROW, "name": _ARROW, **more}
    return msgspec.json.encode(where)[:-1] + f',"ts":{ts_ns // 1000}.{ts_ns % 1000:03d}}}'.encode()
