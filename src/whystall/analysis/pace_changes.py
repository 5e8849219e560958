"""Whether a run changed its pace for good while it went on: a later recording represents the time after that.

A loader's store that answers late from some moment on, a neighbour that begins: the mean of all steps is then neither
the old pace nor the new one. A pace that rises slowly is no change, nor is one that comes and goes. If steps show none,
means of a few consecutive ones are compared: a new event may occur in every second step.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
from numpy.typing import NDArray

Durations = NDArray[np.int64]

FEWEST: Final = 20
"""Fewest steps of a pace."""
IN_A_ROW: Final = 4
"""Number of consecutive steps that are averaged."""
# Nearly all steps on one side of a change are longer than nearly all on the other, and the medians differ by this
# factor: other programs that come and go on a shared machine change the pace of a healthy job by up to 1.4.
_CHANGED: Final = 1.5
# Means must differ by more: single slow steps are in several of them.
_CHANGED_BY_MEANS: Final = 2.0
_NEARLY_ALL: Final = 0.25
# Minimum share of the difference between the sides that lies at the change itself: else it rises slowly.
_AT_ONCE: Final = 0.6
# Two paces are the same one where they differ by no more than this.
_ALIKE: Final = 1.15
_MOST_BLOCKS: Final = 256
_MOST_CHANGES: Final = 8


def pace_changes(duration: Durations) -> list[int]:
    """The steps at which the run changes its pace, in order; none if an earlier pace returns.

    >>> pace_changes(np.repeat([8_000, 31_000], [100, 60]))
    [100]
    >>> pace_changes(np.repeat([8_000, 31_000, 8_000], [100, 60, 100]))
    []
    >>> pace_changes(np.linspace(8_000, 31_000, 200).astype(np.int64))
    []
    """
    found = _to_other_paces(duration, _CHANGED)
    if found:
        return found
    # the mean at a place is of it and the next ones
    return [change + IN_A_ROW // 2 for change in _to_other_paces(means_in_a_row(duration), _CHANGED_BY_MEANS)]


def _to_other_paces(duration: Durations, least: float) -> list[int]:
    """The changes by at least ``least``, in order; none where a pace comes back."""
    changes = sorted(_within(duration, least))
    if not changes:
        return []
    edges = [0, *changes, len(duration)]
    paces = [float(np.median(duration[begin:end])) for begin, end in itertools.pairwise(edges)]
    again = any(
        max(paces[at], paces[later]) <= _ALIKE * min(paces[at], paces[later])
        for at in range(len(paces))
        for later in range(at + 2, len(paces))
    )
    return [] if again else changes


def means_in_a_row(duration: Durations) -> Durations:
    """The mean of each step and the next few.

    >>> means_in_a_row(np.array([1, 7, 1, 7, 1], np.int64)).tolist()
    [4, 4]
    """
    sums = np.append(0, np.cumsum(duration))
    return (sums[IN_A_ROW:] - sums[:-IN_A_ROW]) // IN_A_ROW if len(duration) >= IN_A_ROW else duration[:0]


def _within(duration: Durations, least: float) -> list[int]:
    """The changes of a run, in no order."""
    found: list[int] = []
    stretches = [(0, len(duration))]
    while stretches and len(found) < _MOST_CHANGES:
        first, last = stretches.pop()
        change = _change(duration[first:last], least)
        if change is not None:
            found.append(first + change)
            stretches += [(first, first + change), (first + change, last)]
    return found


def _change(duration: Durations, least: float) -> int | None:
    """The step of a stretch from which on its pace is another; ``None`` where it is one."""
    if len(duration) < 2 * FEWEST:
        return None
    at = _split(duration)
    if not FEWEST <= at <= len(duration) - FEWEST:
        return None
    before, after = duration[:at], duration[at:]
    low, high = (before, after) if np.median(before) < np.median(after) else (after, before)
    if np.quantile(high, _NEARLY_ALL) <= np.quantile(low, 1 - _NEARLY_ALL):
        return None
    whole = _apart(low, high)
    near = _apart(*sorted((before[-FEWEST:], after[:FEWEST]), key=lambda steps: float(np.median(steps))))
    return at if whole >= np.log(least) and near >= _AT_ONCE * whole else None


def _apart(low: Durations, high: Durations) -> float:
    """The logarithm of the ratio of the median steps of two stretches."""
    return float(np.log(max(np.median(high), 1.0)) - np.log(max(np.median(low), 1.0)))


def _split(duration: Durations) -> int:
    """The split at which two means fit the logarithms best: among blocks (their medians), then within two of them."""
    logs = np.log(np.maximum(duration, 1).astype(np.float64))
    edges = np.unique(np.linspace(0, len(logs), min(len(logs), _MOST_BLOCKS) + 1).astype(np.intp))
    medians = np.array([np.median(logs[a:b]) for a, b in itertools.pairwise(edges)])
    block = _best(medians, FEWEST * len(medians) // len(logs))
    first, last = int(edges[max(block - 1, 0)]), int(edges[min(block + 1, len(edges) - 1)])
    # a slow step weighs no more than one at the slower pace
    between = np.clip(logs[first:last], *sorted((np.median(medians[:block]), np.median(medians[block:]))))
    return first + _best(between, 1) if last - first > 2 else int(edges[block])


def _best(values: NDArray[np.float64], margin: int) -> int:
    """The index that splits values into two whose sums of squares about their means are least."""
    count = np.arange(1, len(values))
    sums = np.cumsum(values)[:-1]
    gain = sums**2 / count + (values.sum() - sums) ** 2 / (len(values) - count)
    margin = max(min(margin, (len(values) - 1) // 2), 1)
    chosen = gain[margin - 1 : len(gain) - margin + 1]
    return int(np.argmax(chosen)) + margin
