"""The noise between runs of one job (A/A), and the least change visible beside it.

A baseline's runs and later ones are not interleaved, and so are not paired: the logs of their lengths count as normal,
and Student's t accounts for their small number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from whystall.analysis.paired import SIGMAS, half_width, student

# How many pairs are proposed.
_PAIRS: Final = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64)


class RunNoise(msgspec.Struct, frozen=True, kw_only=True):
    """The spread of the length of the step over ``runs`` of one job, as a share, at one standard deviation."""

    runs: int
    spread: float

    def error(self, runs: int = 1) -> float:
        """The error of the mean of ``runs`` runs, as a share: 1.96 of it are the interval at 95 %."""
        return self.spread * student(self.runs - 1) / SIGMAS / float(np.sqrt(runs))

    def least_change(self, runs: int = 1) -> float:
        """The least change that ``runs`` further runs can show, as a share.

        >>> round(RunNoise(runs=8, spread=0.02).least_change(), 3)
        0.051
        """
        return float(np.expm1(SIGMAS * np.hypot(self.error(self.runs), self.error(runs))))

    def pairs_for(self, change: float) -> int | None:
        """How many interleaved pairs of runs it takes to show a change; ``None``: more than 64.

        >>> RunNoise(runs=8, spread=0.02).pairs_for(0.03), RunNoise(runs=8, spread=0.02).pairs_for(0.001)
        (7, None)
        """
        of_a_pair = self.spread * 2**0.5
        return next((pairs for pairs in _PAIRS if of_a_pair * half_width(pairs) <= np.log1p(change)), None)


def run_noise(lengths: Sequence[float]) -> RunNoise | None:
    """The noise between runs of these lengths; ``None`` for a single one. Lengths in any unit, above 0.

    >>> run_noise([100.0, 102.0, 98.0, 100.0])
    RunNoise(runs=4, spread=0.0163)
    """
    if len(lengths) < 2:
        return None
    return RunNoise(runs=len(lengths), spread=round(float(np.std(np.log(lengths), ddof=1)), 4))


def middle(lengths: Sequence[float]) -> float:
    """The length of a job's step over several runs of equal weight: their geometric mean."""
    return float(np.exp(np.mean(np.log(lengths))))
