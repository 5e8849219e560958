"""The time after which a thread that runs Python releases the interpreter's lock to a sampler.

Within Python's own 5 ms most stretches of Python are over. A shorter time costs nothing while no other thread requests
the lock; where others do, it would change hands more often than without us: there the usual time stays.
"""

from __future__ import annotations

import sys
from typing import Final

from whystall._native import interval_in_force, restore_interval, shorten_interval

SHORT_S: Final = 0.001


class Switching:
    """Shortens the interval and restores it; an interval that the program has set meanwhile stays.

    The program reads the usual interval all the while.
    """

    def __init__(self) -> None:
        self._usual_s = sys.getswitchinterval()
        self._shortened = False

    def shorten(self) -> None:
        """No other thread contends for the lock: a sampler gets it soon."""
        if self._usual_s > SHORT_S and _alike(sys.getswitchinterval(), self._usual_s):
            shorten_interval(sys.getswitchinterval, sys.setswitchinterval, SHORT_S)
            self._shortened = True

    def give_back(self) -> None:
        """As it was before we came."""
        if self._shortened:
            restore_interval()
        self._shortened = False

    @staticmethod
    def in_force_s() -> float:
        """The interval that counts."""
        return interval_in_force(sys.getswitchinterval)


def _alike(one_s: float, other_s: float) -> bool:
    """Whether two intervals are the same in microseconds, which is how Python keeps them."""
    return round(one_s * 1e6) == round(other_s * 1e6)
