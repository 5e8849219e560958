"""Matches the steps of ranks: ranks are not always recorded from the same one on.

While a rank whose window is over writes its trace, the other ranks wait for it: that is no step of the job's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def shifts(steps: Sequence[NDArray[np.int64]], meetings: Sequence[NDArray[np.int64]]) -> list[int]:
    """The offset of each rank's step numbers that gives the same step one number on all ranks.

    ``steps`` holds the step that enqueued each of a rank's collectives (-1: none), ``meetings`` its number. Most of the
    collectives that two ranks share must agree; ranks that share none keep their numbers.
    """
    found: list[int] = []
    known: dict[int, int] = {}
    for step, number in zip(steps, meetings, strict=True):
        inside = step >= 0
        own = dict(zip(number[inside].tolist(), step[inside].tolist(), strict=True))
        apart = np.array([known[one] - at for one, at in own.items() if one in known], np.int64)
        values, counts = np.unique(apart, return_counts=True)
        agreed = len(counts) > 0 and 2 * counts.max() > len(apart)
        found.append(int(values[counts.argmax()]) if agreed else 0)
        known = {one: at + found[-1] for one, at in own.items()} | known
    return found


def shared(steps: Sequence[NDArray[np.int64]]) -> frozenset[int]:
    """The steps, by numbers that are the same on all ranks, that every rank which has any recorded; all if too few."""
    own = [frozenset(each.tolist()) for each in steps if len(each)]
    everything = frozenset[int]().union(*own)
    common = frozenset.intersection(*own) if own else everything
    return common if len(common) > 1 else everything
