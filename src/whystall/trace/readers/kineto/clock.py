"""From scanned times to integer nanoseconds since 1970, and which events have a time at all.

Kineto writes microseconds, with or without three decimals, absolute or relative to
``baseTimeNanoseconds``; some exporters write nanoseconds. The scanner has read every number as
microseconds, exactly; here the unit and the origin are decided for the whole file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.trace.readers.kineto.raw import MISSING_TIME, RawTable

_DAY_NS: Final = 86_400 * 1_000_000_000
_YEAR_NS: Final = 366 * _DAY_NS
_MICROSECOND: Final = 1_000
_LATEST_START_NS: Final = 2**63 - 1 - 2 * _DAY_NS


@dataclass(frozen=True, slots=True)
class Clock:
    """The interpretation of one file's scanned times."""

    divide_by: int
    giant: bool
    offset_ns: int
    earliest_ns: int
    latest_ns: int

    @property
    def in_nanoseconds(self) -> bool:
        """Whether the file gave nanoseconds where Kineto gives microseconds."""
        return self.divide_by == _MICROSECOND

    def durations(self, scanned: NDArray[Any]) -> NDArray[np.int64]:
        """Durations in nanoseconds; missing ones stay ``MISSING_TIME``."""
        duration = scanned.astype(np.int64)
        if self.divide_by == 1:
            return duration
        return np.where(duration == MISSING_TIME, MISSING_TIME, duration // self.divide_by)

    def starts(self, scanned: NDArray[np.int64]) -> NDArray[np.int64]:
        """Start times in nanoseconds; those that cannot be read are ``MISSING_TIME``."""
        if self.giant:
            # the scanner marks numbers too large for microseconds by a minus sign, unscaled
            return np.where(scanned < 0, _negated(scanned), MISSING_TIME)
        start = np.where(scanned < 0, MISSING_TIME, scanned // self.divide_by + self.offset_ns)
        return start.astype(np.int64, copy=False)

    def plausible(self, start: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a start time belongs to this trace: within a day of its middle, and 64 bits hold its end."""
        return (start >= self.earliest_ns) & (start <= min(self.latest_ns, _LATEST_START_NS))


def _negated(scanned: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(scanned == MISSING_TIME, MISSING_TIME, -np.maximum(scanned, -(2**62) * 2 + 1))


def clock_of(tables: Sequence[RawTable], base_time_ns: int | None) -> Clock:
    """The clock of a file, from the times of all its events with a duration."""
    starts = [table.start[table.start != MISSING_TIME] for table in tables if not table.metadata]
    times = np.concatenate(starts) if starts else np.zeros(0, np.int64)
    giants = int(np.count_nonzero(times < 0))
    if giants * 2 > len(times):
        middle = -int(np.median(times[times < 0]))
        return Clock(_MICROSECOND, True, 0, middle - _DAY_NS, middle + _DAY_NS)
    times = times[times >= 0]
    middle = int(np.median(times)) if len(times) else 0
    # Kineto renews its base every few weeks: a time within a year of it is absolute, any other relative,
    # and a relative time of more than a year is in nanoseconds.
    relative = base_time_ns is not None and abs(middle - base_time_ns) > _YEAR_NS
    in_ns = relative and middle > _YEAR_NS and not np.any(times % _MICROSECOND)
    divide_by = _MICROSECOND if in_ns else 1
    offset = base_time_ns if relative and base_time_ns is not None else 0
    middle = middle // divide_by + offset
    return Clock(divide_by, False, offset, middle - _DAY_NS, middle + _DAY_NS)
