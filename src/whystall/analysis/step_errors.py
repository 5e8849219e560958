"""The errors of a run's mean and median step, if neighbouring steps are alike.

Steps are no independent draws: a neighbour on the machine, a clock or a cache makes hundreds of them slow together. The
run is cut into stretches; the error is at least that of their spread. Short stretches hide longer effects, so several
lengths are tried, and the largest error counts ("batch means"; Flegal and Jones 2010).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.paired import student

Floats = NDArray[np.float64]

_SIGMAS: Final = 1.96
_MAD_TO_SIGMA: Final = 1.4826
# The median of few values has the error of the mean of fewer (asymptotic efficiency of the median, 2 / pi).
_MEDIAN_EFFICIENCY: Final = 2 / np.pi
_STRETCHES: Final = (5, 8, 16, 32)
_FEWEST_IN_STRETCH: Final = 4
_RESAMPLES: Final = 200
_SEED: Final = 0  # same run, same error
FEWEST_STEPS: Final = 3
"""Fewest steps for an error."""


def mean_error(durations: Floats) -> float | None:
    """The standard error of the mean: 1.96 of it either side hold 95 %; ``None`` for too few steps."""
    if len(durations) < FEWEST_STEPS:
        return None
    found = float(_few(len(durations)) * np.std(durations, ddof=1) / np.sqrt(len(durations)))
    for count in _stretches(durations):
        means = [float(np.mean(part)) for part in np.array_split(durations, count)]
        found = max(found, float(_few(count) * np.std(means, ddof=1) / np.sqrt(count)))
    return found


def median_error(durations: Floats) -> float | None:
    """The error of the median, by bootstrap: its spread over runs resampled from stretches of this one.

    If a run has two kinds of steps, half and half, its median may be of either: no spread of stretches shows that.
    """
    if len(durations) < FEWEST_STEPS:
        return None
    middle = float(np.median(durations))
    spread = float(np.median(np.abs(durations - middle))) * _MAD_TO_SIGMA
    found = float(_few(len(durations)) * spread / np.sqrt(len(durations) * _MEDIAN_EFFICIENCY))
    for count in _stretches(durations):
        low, high = np.quantile(_medians_drawn_anew(durations, count), [0.025, 0.975])
        found = max(found, _few(count) * max(float(high) - middle, middle - float(low)) / _SIGMAS)
    return found


def _stretches(durations: Floats) -> list[int]:
    """Into how many stretches a run may be cut."""
    return [count for count in _STRETCHES if len(durations) >= count * _FEWEST_IN_STRETCH]


def _medians_drawn_anew(durations: Floats, count: int) -> Floats:
    """The medians of runs resampled from ``count`` stretches of this one, with replacement."""
    order = np.argsort(durations, kind="stable")
    stretch = (np.arange(len(durations)) * count // len(durations))[order]
    drawn = np.random.default_rng(_SEED).multinomial(count, [1 / count] * count, _RESAMPLES)
    sums = (np.cumsum(times[stretch]) for times in drawn)
    found: Floats = durations[order][[int(np.searchsorted(up_to, up_to[-1] / 2)) for up_to in sums]]
    return found


def _few(count: int) -> float:
    """The factor by which an interval widens because its spread comes from only ``count`` values."""
    return student(count - 1) / _SIGMAS
