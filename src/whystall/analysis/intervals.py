"""Unions and intersections of device events by class, in integer nanoseconds, for any window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall._native import class_states

Times = NDArray[np.int64]

# Conditions at an instant, by the mask of classes running (bit 0 compute, 1 communication, 2 memory).
_MASKS: Final = np.arange(8)
ANY: Final = _MASKS != 0
COMPUTE_RUNS: Final = (_MASKS & 1) != 0
COMMUNICATION_RUNS: Final = (_MASKS & 2) != 0
MEMORY_RUNS: Final = (_MASKS & 4) != 0
COMPUTE_AND_COMMUNICATION: Final = COMPUTE_RUNS & COMMUNICATION_RUNS
ONLY_COMMUNICATION: Final = _MASKS == 2
ONLY_MEMORY: Final = _MASKS == 4
COMMUNICATION_NOT_COMPUTE: Final = COMMUNICATION_RUNS & ~COMPUTE_RUNS


def runs(chosen: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first place of each run of chosen places, and the place behind its last.

    >>> runs(np.array([True, True, False, True]))
    (array([0, 3]), array([2, 4]))
    """
    edges = np.diff(chosen.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)


def within(instants: Times, begin: Times, end: Times) -> NDArray[np.bool_]:
    """Which instants lie in one of some intervals (which may overlap)."""
    return np.searchsorted(np.sort(begin), instants, side="right") > np.searchsorted(
        np.sort(end), instants, side="right"
    )


@dataclass(frozen=True, slots=True)
class Timeline:
    """A partition of time into spans of one state: ``times[i]`` to ``times[i + 1]`` is in ``states[i]``."""

    times: Times
    states: NDArray[np.uint8]

    def cumulative(self, counted: NDArray[np.bool_]) -> Cumulative:
        """The time in states that are ``counted``, as a function of windows."""
        flags = counted[self.states]
        spans = np.diff(self.times)
        sums = np.zeros(len(self.times), np.int64)
        np.cumsum(np.where(flags, spans, 0), out=sums[1:]) if len(spans) else None
        return Cumulative(self.times, flags, sums)

    def total(self, counted: NDArray[np.bool_]) -> int:
        """The whole time in states that are ``counted``."""
        return int(np.diff(self.times)[counted[self.states]].sum()) if len(self.states) else 0


@dataclass(frozen=True, slots=True)
class Cumulative:
    """Time counted up to any instant."""

    times: Times
    flags: NDArray[np.bool_]
    sums: Times

    def until(self, instants: Times) -> Times:
        """The time counted before each instant."""
        if not len(self.flags):
            return np.zeros(len(instants), np.int64)
        span = np.searchsorted(self.times, instants, side="right") - 1
        inside = np.clip(span, 0, len(self.flags) - 1)
        partial = np.where(self.flags[inside], instants - self.times[inside], 0)
        counted = self.sums[inside] + partial
        return np.where(span < 0, 0, np.where(span >= len(self.flags), self.sums[-1], counted))

    def within(self, begin: Times, end: Times) -> Times:
        """The time counted in each window."""
        return self.until(end) - self.until(begin)


def merged_times(*sorted_times: Times) -> Times:
    """The distinct times of several sorted arrays, sorted (numpy's ``union1d`` hashes, which is ten times slower)."""
    times = np.concatenate(sorted_times)
    times.sort(kind="stable")
    return times[np.append(True, times[1:] != times[:-1])] if len(times) else times


def class_timeline(start: Times, end: Times, class_of: NDArray[np.uint8]) -> Timeline:
    """Which classes run at each instant; a state is the mask of classes."""
    times, states = class_states(
        np.ascontiguousarray(start), np.ascontiguousarray(end), np.ascontiguousarray(class_of, dtype=np.uint8)
    )
    return Timeline(times, states)


@dataclass(frozen=True, slots=True)
class Spans:
    """Stretches of time that do not overlap, by begin, each of one part (a number that the maker defines)."""

    begin: Times
    end: Times
    part: NDArray[np.uint8]

    @classmethod
    def joined(cls, pieces: Sequence[Spans]) -> Spans:
        """All non-empty intervals in order; neighbours of one part are merged."""
        begin, end, part = (
            np.concatenate([getattr(piece, field) for piece in pieces]) for field in ("begin", "end", "part")
        )
        order = np.argsort(begin, kind="stable")
        order = order[end[order] > begin[order]]
        begin, end, part = begin[order], end[order], part[order]
        if not len(begin):
            return cls(begin, end, part)
        new = np.append(True, (part[1:] != part[:-1]) | (begin[1:] != end[:-1]))
        last = np.append(new[1:], True)
        return cls(begin[new], end[last], part[new])

    def within(self, begin: int, end: int) -> Spans:
        """The parts of them within a window."""
        low, high = np.clip(self.begin, begin, end), np.clip(self.end, begin, end)
        kept = high > low
        return Spans(low[kept], high[kept], self.part[kept])


@dataclass(frozen=True, slots=True)
class Gaps:
    """Stretches in which no event of the device ran, and the event that ended each (``next_event``)."""

    begin: Times
    end: Times
    next_event: NDArray[np.int64]


def gaps_between(start: Times, end: Times) -> Gaps:
    """The gaps between events that are sorted by start."""
    if not len(start):
        none = np.zeros(0, np.int64)
        return Gaps(none, none, none)
    reached = np.maximum.accumulate(end)
    ended = np.flatnonzero(start[1:] > reached[:-1]) + 1
    return Gaps(reached[ended - 1], start[ended], ended.astype(np.int64))
