"""How far the clocks of ranks are apart, and whether one runs faster: all ranks see a collective end at one time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.meetings import Attendance
from whystall.vocabulary.collectives import kind_named

# No rank leaves these before it has every other rank's input. A rank that broadcasts or sends may leave first.
_END_TOGETHER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v"})
_FEW: Final = 3
_FEWEST_FOR_DRIFT: Final = 8
_SURELY: Final = 4.0
_SURE_OFFSET: Final = 3.0
_LEAST_DRIFT_NS: Final = 1_000
# Quartz is off by some ten parts in a million: a larger drift is no clock's.
_MOST_DRIFT: Final = 5e-4
# The standard deviation of normal values over the median of their distances, and of their median over their own.
_DEVIATION: Final = 1.4826
_OF_MEDIAN: Final = 1.2533


@dataclass(frozen=True, slots=True)
class RankClock:
    """A rank's clock relative to that of the first rank.

    ``offset_ns`` is added to a time at ``at_ns`` on the rank's own clock; other times also get ``drift`` times their
    distance from it. ``uncertainty_ns`` (one standard deviation) is known from three ``meetings`` on.
    """

    offset_ns: int = 0
    drift: float = 0.0
    at_ns: int = 0
    uncertainty_ns: float | None = None
    meetings: int = 0

    def shared(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times on the rank's clock as those on the first rank's."""
        moved = times + self.offset_ns
        return moved if not self.drift else moved + np.rint(self.drift * (times - self.at_ns)).astype(np.int64)

    def own(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The inverse of `shared`. If a faster clock maps two instants to one, this returns the later."""
        moved = times - self.offset_ns
        if not self.drift:
            return moved
        found: NDArray[np.int64] = moved - np.rint((moved - self.at_ns) * (self.drift / (1 + self.drift))).astype(
            np.int64
        )
        found += times - self.shared(found)  # rounding
        found += self.shared(found + 1) == times
        return found


def rank_clocks(ranks: Sequence[Attendance], numbers: Sequence[NDArray[np.int64]]) -> dict[int, RankClock]:
    """The clock of each rank, from the ends of the meetings that `whystall.analysis.meetings.meetings` numbered.

    Ranks that share no meeting with the first are set by those that do, and so on; a rank without a chain of meetings
    keeps its own time.
    """
    clocks: dict[int, RankClock] = {}
    together = [_together(one) for one in ranks]
    left = list(range(len(ranks)))
    known = _Known(*(np.zeros(0, np.int64) for _ in range(3)))
    while left:
        linked = [one for one in left if np.isin(numbers[one], known.number).any()]
        for one in linked or left[:1]:
            own = ranks[one]
            clocks[own.rank] = _clock(own, numbers[one], together[one], known) if linked else RankClock()
        known = _with(known, [(ranks[one], numbers[one], clocks[ranks[one].rank]) for one in linked or left[:1]])
        left = [one for one in left if ranks[one].rank not in clocks]
    return clocks


@dataclass(frozen=True, slots=True)
class _Known:
    """Meetings in order of their numbers, with begin and end on the first rank's clock, of who was set first."""

    number: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]


def _with(known: _Known, more: Sequence[tuple[Attendance, NDArray[np.int64], RankClock]]) -> _Known:
    number = np.concatenate([known.number, *(numbers for _, numbers, _ in more)])
    start = np.concatenate([known.start, *(clock.shared(one.start) for one, _, clock in more)])
    end = np.concatenate([known.end, *(clock.shared(one.end) for one, _, clock in more)])
    first, place = np.unique(number, return_index=True)
    return _Known(first, start[place], end[place])


def _together(one: Attendance) -> NDArray[np.bool_]:
    names = one.records["collective"].fill_null("").to_list()
    known = {name: kind_named(name) in _END_TOGETHER or "barrier" in name.lower() for name in set(names)}
    return np.array([known[name] for name in names], np.bool_)


def _clock(own: Attendance, numbers: NDArray[np.int64], together: NDArray[np.bool_], known: _Known) -> RankClock:
    """A rank's clock by the meetings whose end is known on the first rank's."""
    both = np.isin(numbers, known.number)
    if np.count_nonzero(both & together) >= _FEW:
        both &= together
    place = np.searchsorted(known.number, numbers[both])
    if own.on_host and _one_clock(own.start[both], own.end[both], known.start[place], known.end[place]):
        return RankClock(meetings=len(place))
    return _fitted(own.end[both], known.end[place] - own.end[both])


def _one_clock(
    start: NDArray[np.int64], end: NDArray[np.int64], other_start: NDArray[np.int64], other_end: NDArray[np.int64]
) -> bool:
    """Whether two ranks may have one clock: neither sees an end before the other has come.

    A library on the host ends when its last packet is through, which may be long after the other rank's: such ends are
    weaker evidence than that ranks of one machine have one clock, and that the clocks of most clusters are set.
    """
    return bool((start <= other_end).all() and (other_start <= end).all())


def _fitted(at: NDArray[np.int64], apart: NDArray[np.int64]) -> RankClock:
    """The line through the offsets of two clocks; collectives that did not end together move it little."""
    count, origin = len(at), int(np.median(at))
    since, value = (at - origin).astype(np.float64), apart.astype(np.float64)
    middle = float(np.median(value))
    if count < _FEW:
        return RankClock(round(middle), 0.0, origin, None, count)
    drift = _drift(since, value) if count >= _FEWEST_FOR_DRIFT else 0.0
    offset = float(np.median(value - drift * since))
    scatter = _DEVIATION * float(np.median(np.abs(value - drift * since - offset)))
    uncertainty = _OF_MEDIAN * scatter / count**0.5
    if not drift and abs(offset) <= _SURE_OFFSET * uncertainty:
        return RankClock(0, 0.0, origin, uncertainty, count)
    return RankClock(round(offset), drift, origin, uncertainty, count)


def _drift(since: NDArray[np.float64], apart: NDArray[np.float64]) -> float:
    """By how much one clock runs faster, where this is sure (Theil 1950, each value in one pair)."""
    order = np.argsort(since, kind="stable")
    since, apart = since[order], apart[order]
    half = len(since) // 2
    long = since[-half:] - since[:half]
    long_enough = long > 0
    if not long_enough.any():
        return 0.0
    slopes = (apart[-half:] - apart[:half])[long_enough] / long[long_enough]
    drift = float(np.median(slopes))
    error = _OF_MEDIAN * _DEVIATION * float(np.median(np.abs(slopes - drift))) / len(slopes) ** 0.5
    sure = abs(drift) > _SURELY * error and abs(drift) * float(since[-1] - since[0]) > _LEAST_DRIFT_NS
    return drift if sure and abs(drift) <= _MOST_DRIFT else 0.0
