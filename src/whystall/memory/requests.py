"""Requests of a program to its allocator, in order, for the simulated one."""

from __future__ import annotations

import numpy as np

from whystall.memory.allocator import Allocation, Free
from whystall.memory.lifetimes import BEFORE, Lifetimes
from whystall.memory.snapshot import DeviceRecord

__all__ = ["MOST_SIMULATED", "requests_of"]

MOST_SIMULATED = 100_000
"""Allocations of a record that are simulated: a second or two."""


def requests_of(record: DeviceRecord, alive: Lifetimes, until: int | None = None) -> list[Allocation | Free]:
    """The requests before the event ``until``; memory from before the record comes first."""
    last = len(record.events) if until is None else until
    begin, end = alive.begin, np.minimum(alive.end, len(record.events))
    stream = np.where(begin == BEFORE, 0, record.events.stream[np.maximum(begin, 0)]).tolist()
    moves = sorted(
        [(row, 1, key) for key, row in enumerate(begin.tolist()) if row < last]
        + [(row, 0, key) for key, row in enumerate(end.tolist()) if row < last]
    )
    sizes = alive.requested.tolist()
    return [Allocation(key, sizes[key], stream[key]) if begins else Free(key) for _, begins, key in moves]
