"""Gradients that ranks reduce and no optimizer uses: of a network that judges another one, which learns."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.detectors.collectives import Collectives, are, launched_ns
from whystall.diagnosis.detectors.recorded_sizes import sizes_by_argument
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import codes, judged, matching
from whystall.trace.steps import OPTIMIZER_STEP

_SUM: Final = re.compile(r"^(all_?reduce|_?reduce_?scatter)", re.IGNORECASE)
_FEWEST_STEPS: Final = 4
_NEAR: Final = 0.5
"""Who updates both networks updates the judge's parameters as well: once their number more, and not half of it."""
_FAR_LESS: Final = 0.45
"""Optimizers of two kinds read a parameter once or twice in their calls."""
_SAME: Final = 0.02
"""Steps of optimizers of one kind that update as many numbers are steps of one optimizer."""
_LEAST_OFTEN: Final = 1 / 4
"""Of two that take turns each has half of the steps, or the judge some more."""
_LEAST_BYTES: Final = 1 << 16
"""Bytes: small sums (a loss, a norm) are alike by chance."""


def thrown_away(rank: RankCase, found: Collectives) -> tuple[NDArray[np.bool_], float]:
    """Which reductions are of gradients that the optimizer's next step does not use, and how many of all bytes.

    Two optimizers step in turn. What is reduced before one's step is reduced before the other's too, among more; and
    that other one updates only as many numbers as the rest has, so that the next step of the first finds them gone, or
    mixed up with its own.
    """
    out = np.zeros(len(found.node), np.bool_)
    sums = np.flatnonzero(are(found, _SUM) & (found.size > 0))
    begin, end, names = _optimizer_steps(rank)
    if len(begin) < _FEWEST_STEPS or not len(sums):
        return out, 0.0
    updated = _numbers_updated(rank, begin, end)
    if not (updated > 0).all():
        return out, 0.0
    before = np.searchsorted(begin, launched_ns(rank, found)[sums], side="right")
    groups = [sums[before == step] for step in range(len(begin))]
    sizes = [Counter(found.size[group].tolist()) for group in groups]
    turns = [_Turn(*one) for one in zip(names, updated.tolist(), sizes, strict=True)]
    judged_in = 0
    for step, turn in enumerate(turns):
        unused = [other.sizes for other in turns[max(step - 1, 0) : step + 2] if turn.does_not_use(other)]
        judged_in += bool(unused)
        for each in unused:
            left = each.copy()
            for row in groups[step].tolist():
                size = int(found.size[row])
                out[row] |= left[size] > 0
                left[size] -= 1
    if judged_in < _LEAST_OFTEN * len(begin):
        # A recording may begin within a step, of which it has but a part.
        return np.zeros(len(found.node), np.bool_), 0.0
    return out, float(found.size[out].sum() / max(found.size[sums].sum(), 1))


@dataclass(frozen=True, slots=True)
class _Turn:
    """What is reduced until an optimizer steps, by size in bytes, and how many numbers it updates."""

    name: str
    updated: float
    sizes: Counter[int]

    def does_not_use(self, other: _Turn) -> bool:
        """Whether another turn's reductions are made in this one too, whose optimizer does not update that much."""
        if not other.sizes < self.sizes or max(other.sizes, default=0) < _LEAST_BYTES:
            return False
        ratio = self.updated / other.updated
        if self.name != other.name:
            return ratio < _FAR_LESS
        theirs = _bytes(other.sizes)
        return abs(ratio - 1) >= _SAME and ratio < (_bytes(self.sizes) - theirs) / theirs + _NEAR


def _bytes(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())


def _optimizer_steps(rank: RankCase) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """When optimizers' steps begin and end, in order, and what these are called."""
    marks = rank.trace.annotations
    chosen = np.flatnonzero(matching(marks["name"], OPTIMIZER_STEP.search))
    chosen = chosen[np.argsort(marks["ts_ns"].to_numpy()[chosen], kind="stable")]
    begin = marks["ts_ns"].to_numpy()[chosen]
    return begin, begin + marks["duration_ns"].to_numpy()[chosen], marks["name"].gather(chosen).cast(str).to_list()


def _numbers_updated(rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each step of an optimizer how many numbers its operator that is given most of them is given."""
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()
    step = np.searchsorted(begin, at, side="right") - 1
    inside = np.flatnonzero((step >= 0) & (at < end[np.maximum(step, 0)]))
    numbers = np.array(judged(table.select("input_dims")[inside], _first_numbers), np.float64)
    kinds, kind = np.unique(codes(table["name"])[inside], return_inverse=True)
    sums = np.zeros((len(begin), len(kinds)))
    np.add.at(sums, (step[inside], kind), numbers)
    return np.asarray(sums.max(axis=1, initial=0.0), np.float64)


def _first_numbers(dims: str | None) -> int:
    """The numbers in the first argument, which may be a list of tensors."""
    first = sizes_by_argument(dims)[:1]
    return sum(int(np.prod(size)) for size in first[0]) if first else 0
