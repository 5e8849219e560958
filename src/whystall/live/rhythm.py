"""The length of a step, estimated from repeating stacks of a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Fewer repetitions are no rhythm; a phase seen at single ticks only may have been missed equally often.
_FEWEST: Final = 4
_LEAST_TICKS: Final = 2.0
_MOST_SPREAD: Final = 0.2
"""Largest relative median deviation of the distances between begins."""


def step_seconds(kinds: Sequence[str], per_second: float) -> float | None:
    """The time from one begin of a kind of work to the next, by the kind that returns most evenly; ``None``: no rhythm.

    >>> step_seconds(["forward"] * 5 + ["backward"] * 5 + (["forward"] * 10 + ["backward"] * 10) * 8, 100)
    0.2
    """
    names = np.array(kinds)
    found = []
    for kind in dict.fromkeys(kinds):
        distances = _distances(names == kind)
        if distances is not None:
            middle = float(np.median(distances))
            spread = float(np.median(np.abs(distances - middle))) / middle
            if spread <= _MOST_SPREAD:
                found.append((spread, middle))
    return min(found)[1] / per_second if found else None


def _distances(there: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """Ticks between begins, if both the phase and its gaps last long enough to be seen each time."""
    begins = np.flatnonzero(there[1:] & ~there[:-1]) + 1
    if len(begins) <= _FEWEST:
        return None
    inside = slice(int(begins[0]), int(begins[-1]))
    on = int(np.count_nonzero(there[inside])) / (len(begins) - 1)
    off = int(np.count_nonzero(~there[inside])) / (len(begins) - 1)
    return np.diff(begins) if min(on, off) >= _LEAST_TICKS else None
