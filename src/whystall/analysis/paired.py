"""Statistics of pairs of runs: the speed-up with an interval, and how far two runs of the same code differ.

Two halves of one run of identical code were seen to differ by 0.88 to 1.31 times on a shared machine (reference:
causes.md, "Proof of a fix"): only interleaved pairs and a noise floor measured in the same way separate a change from
that. A pair is one observation, however many steps its runs had: all steps of a run share the noise of that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

RESAMPLES: Final = 4_000
CONFIDENCE: Final = 0.95
SIGMAS: Final = 1.96
"""95 % of a normal distribution."""

_SEED: Final = 0  # same measurements, same interval
_DRAWS: Final = 400
_SMALL: Final = 0.1
# With fewer pairs no order of signs is rarer than 5 %: the interval is then Student's, of normal log-ratios.
_FEWEST_BY_SIGNS: Final = 6
# Student's t at 97.5 %, for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).
_STUDENT: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio with its interval at 95 %."""

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
    """The comparison of runs that were measured in turn; the i-th of both belong together. Times in any unit.

    Raises ``ValueError`` for fewer than two pairs, or times that are not above 0.

    >>> found = paired([10.0, 10.2, 9.9, 10.1], [5.0, 5.1, 4.95, 5.05])
    >>> round(found.speedup.ratio, 2), found.improved
    (2.0, True)
    """
    if len(before) != len(after) or len(before) < 2:
        raise ValueError(f"at least two pairs are needed, not {min(len(before), len(after))}")
    if min(*before, *after) <= 0:
        raise ValueError("times must be above 0")
    speedup = _interval(np.log(np.array(before, np.float64)) - np.log(np.array(after, np.float64)))
    floor = noise_floor([before, after])
    return Paired(
        speedup=speedup,
        noise_floor=floor,
        pairs=len(before),
        improved=speedup.low > 1 and speedup.ratio > floor,
        worsened=speedup.high < 1 and speedup.ratio < 1 / floor,
    )


def _interval(ratios: NDArray[np.float64]) -> Interval:
    """The middle of the log-ratios and its interval, exact for six pairs and more (Hodges and Lehmann 1963).

    The interval ends at means of two ratios, at the ranks that Wilcoxon's signed ranks give for 95 %.
    """
    count = len(ratios)
    if count < _FEWEST_BY_SIGNS:
        middle = float(np.mean(ratios))
        wide = student(count - 1) * float(np.std(ratios, ddof=1)) / count**0.5
        ends = (middle, middle - wide, middle + wide)
    else:
        first, second = np.triu_indices(count)
        means = np.sort((ratios[first] + ratios[second]) / 2)
        rank = _signed_rank(count)
        ends = (float(np.median(means)), float(means[rank]), float(means[-1 - rank]))
    ratio, low, high = (round(float(np.exp(min(end, 700.0))), 4) for end in ends)
    return Interval(ratio=ratio, low=low, high=high)


def student(freedom: int) -> float:
    """Student's t at 97.5 %; beyond the table by the first term of its expansion.

    >>> student(7), round(student(60), 2)
    (2.365, 2.0)
    """
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.4 / freedom


@cache
def half_width(pairs: int) -> float:
    """Mean half-width of the interval of ``pairs`` pairs, in standard deviations of one pair's log-ratio.

    It is drawn from normal values: the interval of few pairs has no simple formula.
    """
    drawn = np.random.default_rng(_SEED).normal(0, _SMALL, (_DRAWS, pairs))
    found = [_interval(ratios) for ratios in drawn]
    return float(np.mean([np.log(one.high / one.low) for one in found])) / 2 / _SMALL


@cache
def _signed_rank(count: int) -> int:
    """How many of the smallest pairwise means lie outside of the 95 % interval of ``count`` pairs.

    At most 2.5 % of all signs that the ranks 1 to ``count`` may have give a smaller sum of positive ranks.
    """
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, count + 1):
        ways[rank:] = ways[rank:] + ways[:-rank]
    share = np.cumsum(ways) / 2.0**count
    return max(int(np.searchsorted(share, (1 - CONFIDENCE) / 2, side="right")) - 1, 0)


def noise_floor(variants: Sequence[Sequence[float]]) -> float:
    """The ratio by which the median of such pairs may differ from 1 when nothing was changed.

    Each variant's runs are paired with the next ones of the same variant, which is an A/A run of the same length.
    """
    apart = np.concatenate([np.zeros(0), *(np.diff(np.log(np.array(blocks, np.float64))) for blocks in variants)])
    if not len(apart):
        return 1.0
    both = np.concatenate([apart, -apart])  # which came first means nothing
    generator = np.random.default_rng(_SEED)
    pairs = max(len(blocks) for blocks in variants)
    medians = np.median(both[generator.integers(0, len(both), (RESAMPLES, pairs))], axis=1)
    return round(float(np.exp(np.quantile(np.abs(medians), CONFIDENCE))), 4)
