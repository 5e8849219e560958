"""Gradients that ranks reduce and no optimizer uses: of a network that judges another one, which learns."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.detectors.collectives import Collectives, are, launched_ns
from whystall.diagnosis.detectors.recorded_sizes import sizes_by_argument
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import judged, matching
from whystall.trace.steps import OPTIMIZER_STEP

_SUM: Final = re.compile(r"^(all_?reduce|_?reduce_?scatter)", re.IGNORECASE)
_FEWEST_STEPS: Final = 4
_NEAR: Final = 0.5
"""Who updates both networks updates the judge's parameters as well: once their number more, and not half of it."""
_FAR_LESS: Final = 0.45
"""Optimizers of two kinds read a parameter once or twice in their calls."""
_LEAST_BYTES: Final = 1 << 16
"""Bytes: small sums (a loss, a norm) are alike by chance."""


def thrown_away(rank: RankCase, found: Collectives) -> tuple[NDArray[np.bool_], float]:
    """Which reductions are of gradients that the optimizer's next step does not use, and how many of all bytes.

    Two optimizers step in turn. What is reduced before one's step is reduced before the other's too, among more; and
    that other one updates only as many numbers as the rest has, so that the next step of the first finds them gone, or
    mixed up with its own.
    """
    out = np.zeros(len(found.node), np.bool_)
    begin, names, updated = _optimizer_steps(rank)
    sums = np.flatnonzero(are(found, _SUM) & (found.size > 0))
    if len(begin) < _FEWEST_STEPS or not len(sums) or not (updated > 0).all():
        return out, 0.0
    before = np.searchsorted(begin, launched_ns(rank, found)[sums], side="right")
    groups = [sums[before == step] for step in range(len(begin))]
    sizes = [Counter(found.size[group].tolist()) for group in groups]
    for step, all_of_it in enumerate(sizes):
        for other in (step - 1, step + 1):
            if not 0 <= other < len(sizes) or not sizes[other] < all_of_it:
                continue
            if max(sizes[other], default=0) < _LEAST_BYTES:
                continue
            theirs, own = _bytes(sizes[other]), _bytes(all_of_it)
            ratio = updated[step] / updated[other]
            alike = names[step] == names[other]
            if ratio < ((own - theirs) / theirs + _NEAR if alike else _FAR_LESS):
                left = sizes[other].copy()
                for row in groups[step].tolist():
                    size = int(found.size[row])
                    out[row] |= left[size] > 0
                    left[size] -= 1
    return out, float(found.size[out].sum() / max(found.size[sums].sum(), 1))


def _bytes(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())


def _optimizer_steps(rank: RankCase) -> tuple[NDArray[np.int64], list[str], NDArray[np.float64]]:
    """When optimizers step, what these are called, and how many numbers the call that reads most of them updates."""
    marks, table = rank.trace.annotations, rank.trace.operators
    chosen = np.flatnonzero(matching(marks["name"], OPTIMIZER_STEP.search))
    chosen = chosen[np.argsort(marks["ts_ns"].to_numpy()[chosen], kind="stable")]
    begin = marks["ts_ns"].to_numpy()[chosen]
    end = begin + marks["duration_ns"].to_numpy()[chosen]
    names = marks["name"].cast(str)[chosen].to_list()
    at = table["ts_ns"].to_numpy()
    step = np.searchsorted(begin, at, side="right") - 1
    inside = np.flatnonzero((step >= 0) & (at < end[np.maximum(step, 0)]) if len(begin) else np.zeros(len(at), bool))
    numbers = np.array(judged(table.select("input_dims")[inside], _first_numbers), np.float64)
    kinds, kind = np.unique(table["name"].cast(str).to_numpy()[inside], return_inverse=True)
    sums = np.zeros((len(begin), max(len(kinds), 1)))
    np.add.at(sums, (step[inside], kind), numbers)
    return begin, names, sums.max(axis=1, initial=0.0)


def _first_numbers(dims: str | None) -> int:
    """The numbers in the first argument, which may be a list of tensors."""
    first = sizes_by_argument(dims)[:1]
    return sum(int(np.prod(size)) for size in first[0]) if first else 0
