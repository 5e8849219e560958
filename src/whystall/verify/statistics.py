"""What pairs of blocks say: the speed-up with an interval, and how far apart the same thing measures twice.

Two halves of one run of identical code were seen to differ by 0.88 to 1.31 times on a shared machine (reference:
causes.md, "Proof of a fix"): only interleaved pairs and a noise floor measured in the same way tell a change from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

RESAMPLES: Final = 4_000
CONFIDENCE: Final = 0.95
_SEED: Final = 0  # same measurements, same interval


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio with its bootstrap interval at 95 %."""

    ratio: float
    low: float
    high: float


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """The speed-up over all pairs, the noise floor, and whether the one is beyond the other.

    ``noise_floor`` is the ratio by which the same variant differs from itself from block to block, at 95 %.
    """

    speedup: Interval
    noise_floor: float
    pairs: int
    improved: bool
    worsened: bool


def paired(before: Sequence[float], after: Sequence[float]) -> Paired:
    """The comparison of blocks that were measured in turn; the i-th of both belong together. Times in any unit.

    Raises ``ValueError`` for fewer than two pairs, or times that are not above 0.

    >>> found = paired([10.0, 10.2, 9.9, 10.1], [5.0, 5.1, 4.95, 5.05])
    >>> round(found.speedup.ratio, 2), found.improved
    (2.0, True)
    """
    if len(before) != len(after) or len(before) < 2:
        raise ValueError(f"at least two pairs are needed, not {min(len(before), len(after))}")
    if min(*before, *after) <= 0:
        raise ValueError("times must be above 0")
    ratios = np.log(np.array(before, np.float64)) - np.log(np.array(after, np.float64))
    speedup = _interval(ratios)
    floor = noise_floor([before, after])
    return Paired(
        speedup=speedup,
        noise_floor=floor,
        pairs=len(before),
        improved=speedup.low > 1 and speedup.ratio > floor,
        worsened=speedup.high < 1 and speedup.ratio < 1 / floor,
    )


def _interval(ratios: np.ndarray) -> Interval:
    generator = np.random.default_rng(_SEED)
    drawn = generator.integers(0, len(ratios), (RESAMPLES, len(ratios)))
    medians = np.median(ratios[drawn], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return Interval(
        ratio=round(float(np.exp(np.median(ratios))), 4),
        low=round(float(np.exp(low)), 4),
        high=round(float(np.exp(high)), 4),
    )


def noise_floor(variants: Sequence[Sequence[float]]) -> float:
    """By what ratio the median of such pairs may differ from 1 when nothing was changed.

    Each variant's blocks are paired with the next ones of the same variant, which is an A/A run of the same length.
    """
    apart = np.concatenate([np.zeros(0), *(np.diff(np.log(np.array(blocks, np.float64))) for blocks in variants)])
    if not len(apart):
        return 1.0
    both = np.concatenate([apart, -apart])  # which came first means nothing
    generator = np.random.default_rng(_SEED)
    pairs = max(len(blocks) for blocks in variants)
    medians = np.median(both[generator.integers(0, len(both), (RESAMPLES, pairs))], axis=1)
    return round(float(np.exp(np.quantile(np.abs(medians), CONFIDENCE))), 4)
