"""By how much the mean of some steps may be off, judged by how they differ."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.steadiness import FEWEST_TO_DROP

# MAD to standard deviation for a normal distribution.
_MAD_TO_SIGMA: Final = 1.4826
FEWEST_SPREAD: Final = 3
"""With fewer steps their spread is unknown; `NOISE_OF_FEW` is taken in its place."""
NOISE_OF_FEW: Final = 0.01
_OF_FEW: Final = {2: 3.8, 3: 1.8, 4: 1.4, 5: 1.3}
"""Ratio of Student's t for this many steps to the normal distribution, for nine in ten."""


def standard_error(steps: NDArray[np.number[Any]], of: float) -> float:
    """That of the mean of some steps, as a share of ``of``; that of few is never small."""
    found = float(steps.std(ddof=1) / of / np.sqrt(len(steps))) if of > 0 else 0.0
    return found if len(steps) >= FEWEST_TO_DROP else max(_OF_FEW.get(len(steps), 1.0) * found, NOISE_OF_FEW)


def noise_of(windows: list[int]) -> float:
    """The noise of steps, without the first and the last where enough are left; that of few is never small."""
    inner = _noise(windows[1:-1])
    return inner if inner is not None else max(_noise(windows) or 0.0, NOISE_OF_FEW)


def _noise(windows: list[int]) -> float | None:
    if len(windows) < FEWEST_SPREAD:
        return None
    values = np.array(windows, np.float64)
    middle = float(np.median(values))
    if middle <= 0:
        return None
    spread = float(np.median(np.abs(values - middle))) * _MAD_TO_SIGMA
    return spread / middle / float(np.sqrt(len(values)))
