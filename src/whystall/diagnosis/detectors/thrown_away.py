"""Gradients that replicas reduce and no optimizer uses: of a network that judges another one, which learns."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.detectors.collectives import DDP_FORWARD, Collectives, are, launched_ns
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import Shape, sizes_by_argument
from whystall.vocabulary.autograd import ACCUMULATE

_SUM: Final = re.compile(r"^all_?reduce", re.IGNORECASE)
_FEWEST_STEPS: Final = 4
_FEWEST_TURNS: Final = 2
_MOST: Final = 0.5
"""Minimum share of the elements that one optimizer updates in tensors of sizes that the other never touches."""
_LEAST_BYTES: Final = 1 << 16
"""Smaller sums (a loss, a norm) are alike by chance."""


def thrown_away(rank: RankCase, found: Collectives) -> tuple[NDArray[np.bool_], float]:
    """DistributedDataParallel's reductions that the next optimizer step does not use; their share of all bytes.

    Two optimizers step in turn. The reductions before one's step occur before the other's too, among more, and the
    other one touches no tensors of most of the sizes that the first updates: the sums for the first are gone there, or
    mixed up with its own. Networks of equal sizes are not separated, nor from one network of both.
    """
    nothing = np.zeros(len(found.node), np.bool_)
    sums = np.flatnonzero(are(found, _SUM) & (found.size > 0))
    begin, _, _ = rank.optimizer_steps
    replicated = matching(rank.trace.annotations["name"], DDP_FORWARD.search).any()
    if not replicated or len(begin) < _FEWEST_STEPS or not len(sums):
        return nothing, 0.0
    turns = _turns(rank, found, sums)
    unused = {
        step: other
        for step, turn in enumerate(turns)
        if (other := next((one for one in turns[max(step - 1, 0) : step + 2] if turn.does_not_use(one)), None))
    }
    # A recording may begin within a step, so that a part of it is missing, and its end hides later steps.
    others = [step for step in range(len(turns)) if step not in unused]
    followed = {
        step: next(other for other in others if other > step) for step in unused if step < max(others, default=0)
    }
    if len(unused) < _FEWEST_TURNS or not followed:
        return nothing, 0.0
    cleared = _cleared(rank)
    for step, after in followed.items():
        if not turns[step].is_cleared_of(unused[step], cleared, until=turns[after].begin_ns):
            return nothing, 0.0
    out = nothing.copy()
    for step, other in unused.items():
        left = other.sizes.copy()
        for row in turns[step].rows:
            size = int(found.size[row])
            out[row] |= left[size] > 0
            left[size] -= 1
    return out, float(found.size[out].sum() / found.size[sums].sum())


def _turns(rank: RankCase, found: Collectives, sums: NDArray[np.int64]) -> list[_Turn]:
    """The reductions before each step of an optimizer, and its updates; steps without reductions join the former.

    Such a step follows another optimizer's, with reductions for both.
    """
    begin, end, _ = rank.optimizer_steps
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    before = np.searchsorted(begin, launched_ns(rank, found)[sums], side="right")
    out: list[_Turn] = []
    for step, updated in enumerate(_updated(rank, begin, end)):
        rows = sums[before == step]
        sizes = found.size[rows]
        if out and sizes.max(initial=0) < _LEAST_BYTES:
            out[-1] = replace(out[-1], updated=out[-1].updated + updated, end_ns=int(end[step]))
        else:
            out.append(_Turn(rows.tolist(), Counter(sizes.tolist()), updated, int(begin[step]), int(end[step])))
    return out


def _cleared(rank: RankCase) -> list[tuple[int, Shape]]:
    """When a gradient is set to zero, ns, or the first one since comes to a weight that has none; and its size."""
    table = rank.trace.operators
    at, name = table["ts_ns"].to_numpy(), table["name"]
    begin, end, _ = rank.intervals(rank.host_named(ACCUMULATE.__eq__, ("operators",)))
    adds = at[matching(name, ("aten::add_", "aten::add").__contains__)]
    into = np.searchsorted(begin, adds, side="right") - 1
    first = np.ones(len(begin), np.bool_)
    first[into[(into >= 0) & (adds < end[np.maximum(into, 0)])]] = False
    wanted = matching(name, ("aten::zero_", "aten::_foreach_zero_").__contains__)
    wanted |= matching(name, ACCUMULATE.__eq__) & np.isin(at, begin[first])
    sizes = judged(table.select("input_dims").filter(wanted), _first)
    return sorted((when, size) for when, own in zip(at[wanted].tolist(), sizes, strict=True) for size in own)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The reductions until an optimizer steps, by bytes, and the sizes of the tensors that it then receives.

    Several optimizers that step after the same reductions are one turn.
    """

    rows: list[int]
    sizes: Counter[int]
    updated: Counter[Shape]
    begin_ns: int
    end_ns: int

    def is_cleared_of(self, other: _Turn, cleared: list[tuple[int, Shape]], *, until: int) -> bool:
        """Whether gradients of another turn's network are gone before that one's optimizer steps, or else are used."""
        gone = {size for at, size in cleared if self.end_ns <= at < until}
        theirs = self._not_touched(other)
        return sum(numbers for size, numbers in theirs.items() if size in gone) > _MOST * sum(theirs.values())

    def does_not_use(self, other: _Turn) -> bool:
        """Whether another turn's reductions are made in this one too, whose optimizer does not update those tensors."""
        if not other.sizes < self.sizes or max(other.sizes, default=0) < _LEAST_BYTES or not self.updated:
            return False
        numbers = sum(prod(size) * count for size, count in other.updated.items())
        return sum(self._not_touched(other).values()) > _MOST * numbers

    def _not_touched(self, other: _Turn) -> dict[Shape, int]:
        """The numbers in tensors of each size that another turn's optimizer updates, and this one's never."""
        return {size: prod(size) * count for size, count in other.updated.items() if size not in self.updated}


def _updated(rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> list[Counter[Shape]]:
    """The sizes of the first arguments of each optimizer step's operators, and how often they occur."""
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()
    step = np.searchsorted(begin, at, side="right") - 1
    inside = np.flatnonzero((step >= 0) & (at < end[np.maximum(step, 0)]))
    out = [Counter[Shape]() for _ in begin]
    for own, sizes in zip(step[inside].tolist(), judged(table.select("input_dims")[inside], _first), strict=True):
        out[own].update(sizes)
    return out


def _first(dims: str | None) -> tuple[Shape, ...]:
    """The sizes of the first argument's tensors; it may be a list."""
    return next(iter(sizes_by_argument(dims)), ())
