"""Finds the rank that comes last too often for chance, and the cost: for every log with waits between ranks."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["more_than_chance", "stands_out"]

_CHANCE: Final = 0.01
_WORTH: Final = 0.02  # of the time: less is not worth a name
_NOTHING: Final = 1e-9  # of a sum: further terms are smaller still


def stands_out(last: int, decided: int, ranks: int, kept_waiting_ns: int, transfer_ns: int) -> bool:
    """Whether a rank that came ``last`` this often is worth a name: more often than by chance, for 2 % of the time.

    ``decided`` counts the collectives of its group with a last rank.

    >>> stands_out(10, 10, 4, 500, 1000), stands_out(10, 10, 4, 5, 1000)
    (True, False)
    """
    costs = kept_waiting_ns > _WORTH * (transfer_ns + kept_waiting_ns)
    return costs and more_than_chance(last, decided, ranks)


def more_than_chance(last: int, decided: int, ranks: int) -> bool:
    """Whether one of ``ranks`` ranks comes last too often for chance: a binomial test, 1 % over all ranks together.

    >>> more_than_chance(4, 4, 2), more_than_chance(10, 10, 4)
    (False, True)
    """
    if ranks < 2 or last * ranks <= decided:
        return False
    whole, tail = math.lgamma(decided + 1), 0.0
    for times in range(last, decided + 1):
        orders = whole - math.lgamma(times + 1) - math.lgamma(decided - times + 1)
        term = math.exp(orders - times * math.log(ranks) + (decided - times) * math.log1p(-1 / ranks))
        tail += term
        if term < _NOTHING * tail:
            break
    return tail < _CHANCE / ranks
