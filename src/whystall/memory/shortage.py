"""Allocations that found no room: their size, torch's memory, and the memory outside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.lifetimes import Reserved
from whystall.memory.results import OutOfMemory
from whystall.memory.snapshot import HOST, Action, DeviceRecord
from whystall.memory.stacks import Stacks

__all__ = ["shortages"]

_MOST: Final = 20


def shortages(
    record: DeviceRecord,
    stacks: Stacks,
    course: NDArray[np.int64],
    reserved: Reserved | None,
    device_bytes: int | None,
) -> Iterator[OutOfMemory]:
    """The first one of a record and the last ones, by when they happened."""
    events = record.events
    rows = np.flatnonzero(events.action == Action.OOM)
    if len(rows) > _MOST:
        rows = np.append(rows[:1], rows[1 - _MOST :])
    whole = None if record.device == HOST else device_bytes
    for row in rows.tolist():
        site = stacks.site_of(int(events.stack[row]))
        free = int(events.address[row]) or None  # where this event has the address of others
        had = None if reserved is None else reserved.at(row)
        outside, why_none = _outside(whole, free, had)
        yield OutOfMemory(
            event=row,
            at_ns=record.since_start_ns(row),
            unix_ns=None if events.time_us is None else int(events.time_us[row]) * 1000,
            asked_bytes=int(events.size[row]),
            allocated_bytes=int(course[row]),
            reserved_bytes=had,
            device_free_bytes=free,
            outside_bytes=outside,
            outside_unknown_because=why_none,
            site=None if site is None else site.place,
            function=None if site is None else site.function,
            missing_bytes=_missing(int(events.size[row]), free),
        )


def _missing(asked: int, free: int | None) -> int | None:
    """Requested memory beyond the device's free memory; `None` where that is not known, or it had enough."""
    return None if free is None or free >= asked else asked - free


def _outside(whole: int | None, free: int | None, reserved: int | None) -> tuple[int | None, str | None]:
    """Device memory that is neither free nor this allocator's, or the reason why it is unknown."""
    if whole is None:
        return None, "a snapshot does not hold the device's capacity: give --device-memory"
    if free is None:
        return None, "the snapshot does not say what was free on the device"
    if reserved is None:
        return None, "what was reserved at the time is not known"
    if free + reserved > whole:
        return None, "more was free and reserved than the device is said to have"
    return whole - free - reserved, None
