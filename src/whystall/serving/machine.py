"""The machine below a server over the recorded time: its pace, and when its clients get a token.

Slow steps come in groups: other programs hold the machine up for a while, and another setting would have met the same
slow period. So a replay counts usual work, and the machine says when it is done. A client that stands still gets all
tokens of that period at its end, from all requests.

Work is counted in whole units of a 1024th of a nanosecond: sums of many steps are then exact in any order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["STEADY", "UNIT", "Machine", "units"]

UNIT: Final = 1 << 10
"""Units of work in a nanosecond of the usual pace."""
_BLOCKS: Final = 10
"""Blocks of a recording that a draw puts together: those of 12 to 38 s then hold whole slow periods of a second."""

Ints = npt.NDArray[np.int64]


def units(work_ns: float) -> int:
    """Work in units."""
    return round(work_ns * UNIT)


@dataclass(frozen=True, slots=True)
class Machine:
    """Pace and deliveries. Times outside of the recording go round: after its end comes its begin.

    ``work`` is that done until each of ``times_ns``. A token that is ready after ``ready_ns[k]`` reaches its client
    at ``seen_ns[k]`` or ``usual_ns[k]`` later, whichever comes last.
    """

    times_ns: tuple[int, ...] = (0, 1)
    work: tuple[int, ...] = (0, UNIT)
    ready_ns: tuple[int, ...] = ()
    seen_ns: tuple[int, ...] = ()
    usual_ns: tuple[int, ...] = ()

    @classmethod
    def recorded(
        cls,
        boundaries_ns: Sequence[int],
        work_ns: Sequence[float],
        deliveries_ns: Sequence[tuple[int, int, int]] = (),
    ) -> Machine:
        """The machine that did the usual work ``work_ns[k]`` between two boundaries.

        Deliveries are begin and end of a step and when its client had the token. A client that stands still then began
        to at some time of the step: half of it is taken, and no more than the token was late.
        """
        steps = np.maximum(np.rint(np.array(work_ns) * UNIT).astype(np.int64), 1)
        delays = [seen - end for _, end, seen in deliveries_ns]
        usual = int(np.median(delays)) if delays else 0
        return cls(
            tuple(boundaries_ns),
            (0, *np.cumsum(steps).tolist()),
            tuple(max((begin + end) // 2, end - (seen - end)) for begin, end, seen in deliveries_ns),
            tuple(seen for _, _, seen in deliveries_ns),
            tuple(min(one, usual) for one in delays),
        )

    @property
    def length_ns(self) -> int:
        """The length of the recording."""
        return self.times_ns[-1] - self.times_ns[0]

    def work_at(self, time_ns: int) -> int:
        """The work that is done until a time."""
        rounds, within = divmod(time_ns - self.times_ns[0], self.length_ns)
        return rounds * self.work[-1] + _between(within + self.times_ns[0], self.times_ns, self.work)

    def time_at(self, work: int) -> int:
        """When that work is done."""
        rounds, rest = divmod(work, self.work[-1])
        return rounds * self.length_ns + _between(rest, self.work, self.times_ns)

    def delivered(self, time_ns: int) -> int:
        """When the client gets a token that is ready at a time."""
        if not self.ready_ns:
            return time_ns
        rounds, within = divmod(time_ns - self.times_ns[0], self.length_ns)
        inside = within + self.times_ns[0]
        place = bisect_right(self.ready_ns, inside) - 1
        if place < 0:
            return time_ns
        return rounds * self.length_ns + max(self.seen_ns[place], inside + self.usual_ns[place])

    def drawn(self, seed: int) -> Machine:
        """The same machine at another time: blocks of the recording in a drawn order, some twice and some never."""
        starts = np.random.default_rng(seed).integers(0, self.length_ns, _BLOCKS).tolist()
        length = max(self.length_ns // _BLOCKS, 1)
        begin = self.times_ns[0]
        times, work = _twice(self.times_ns, begin, self.length_ns), _twice(self.work, 0, self.work[-1])
        ready, seen, usual = (np.array(one, dtype=np.int64) for one in (self.ready_ns, self.seen_ns, self.usual_ns))
        new_times, new_work = [begin], [0]
        new_ready: list[int] = []
        new_seen: list[int] = []
        new_usual: list[int] = []
        for start in starts:
            at, done = new_times[-1], new_work[-1]
            inner = times[(times > start) & (times < start + length)]
            cuts = np.concatenate(([start], inner, [start + length]))
            amounts = np.interp(cuts, times, work)
            new_times += (cuts[1:] - start + at).tolist()
            more = np.arange(1, len(cuts))  # at least a unit in each piece
            new_work += (np.rint(amounts[1:] - amounts[0]).astype(np.int64) + done + more).tolist()
            for shift in (0, self.length_ns):
                moved = ready - begin + shift
                kept = (moved >= start) & (moved < start + length)
                new_ready += (moved[kept] - start + at).tolist()
                new_seen += (seen[kept] - begin + shift - start + at).tolist()
                new_usual += usual[kept].tolist()
        held = np.maximum.accumulate(np.array(new_seen, dtype=np.int64)).tolist() if new_seen else []
        return Machine(tuple(new_times), tuple(new_work), tuple(new_ready), tuple(held), tuple(new_usual))


STEADY: Final = Machine()
"""A machine that is never slow and delivers at once."""


def _between(value: int, steps: Sequence[int], results: Sequence[int]) -> int:
    """The linear interpolation of a value within increasing steps, in whole numbers."""
    place = min(max(bisect_right(steps, value), 1), len(steps) - 1)
    before, span = steps[place - 1], steps[place] - steps[place - 1]
    return results[place - 1] + (value - before) * (results[place] - results[place - 1]) // span


def _twice(values: Sequence[int], begin: int, length: int) -> Ints:
    """Two rounds of increasing values, from zero."""
    once = np.array(values, dtype=np.int64) - begin
    return np.concatenate((once, once[1:] + length))
