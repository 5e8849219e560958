"""Loops that multiply one group of rows after the other, each by weights of the same sizes: experts, types, samples.

The products repeat with weights of the same sizes, and the number of rows goes up and down from one group to the next:
layers that follow each other have the same rows, and a growing sequence or a shrinking batch goes one way. A group that
is copied from the host, or exchanged with other ranks, is a batch of its own, and cannot be joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.backward import forward_operator_of
from whystall.analysis.intervals import runs
from whystall.analysis.kernel_classes import COMMUNICATION
from whystall.analysis.modules import module_places
from whystall.diagnosis.detectors.outer_calls import outer_calls, places_among
from whystall.diagnosis.detectors.prefixes import Products, products
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask, Times
from whystall.trace.columns import codes, judged, matching
from whystall.trace.recorded_sizes import all_sizes, first_size
from whystall.vocabulary.autograd import ACCUMULATE, ENGINE
from whystall.vocabulary.copies import TO_DEVICE


class Least(NamedTuple):
    """Limits of a loop that is worth joining: fewest groups, fewest different row counts, most products of a group."""

    groups: int
    sizes: int
    products: int
    turns: float
    """The least share of groups that have more rows than the groups before and after, or fewer than both."""
    own_weights: float
    """The share of the products that must have a weight of their own."""


class _Run(NamedTuple):
    """A loop, by its first place among the products, the number of products of a group, and that of groups."""

    first: int
    period: int
    groups: int

    @property
    def heads(self) -> NDArray[np.int64]:
        """The first product of each group."""
        return self.first + self.period * np.arange(self.groups)

    @property
    def products(self) -> slice:
        """All of its products."""
        return slice(self.first, self.first + self.period * self.groups)


@dataclass(frozen=True, slots=True)
class LoopsOverGroups:
    """When each loop begins and ends, its backward passes among them, by time.

    ``loops`` and ``groups`` count those of forward passes; ``elements`` states for each operator how many elements of
    its arguments belong to its group's rows.
    """

    begin: Times
    end: Times
    loops: int
    groups: int
    elements: NDArray[np.int64]
    whole: Mask
    """Operators on tensors that do not depend on the group: one call would do for all."""
    apart: bool
    """Whether the recording shows that no group needs another's result."""


def loops_over_groups(rank: RankCase, least: Least) -> LoopsOverGroups | None:
    """The loops over groups of rows on the training thread; ``None`` where there are none."""
    found = _on_training_thread(rank)
    loops = list(_runs(rank, found, least))
    if not loops:
        return None
    table = rank.trace.operators
    calls = outer_calls(rank)
    place = places_among(rank, calls)
    names = codes(table["name"])[calls]
    # Per call the rows of its group, and the number of its loop, from 1 on.
    rows, loop = (np.zeros(len(table) + 1, np.int64) for _ in range(2))
    groups = 0
    joined: list[_Run] = []
    for run in loops:
        heads = place[found.operator[run.heads]]
        last = int(place[found.operator[run.products.stop - 1]])
        if _learns_between(rank, calls[heads]) or _is_fed(rank, calls[heads]):
            continue
        first, last = _widened(names, heads, last)
        own = found.size[run.heads, 0]
        joined.append(run)
        rows[calls[first : last + 1]] = np.repeat(own, np.diff([*(heads - (heads[0] - first)), last + 1]))
        loop[calls[first : last + 1]] = loop.max() + 1
        groups += run.groups
    if not groups:
        return None
    outer = np.where(place >= 0, calls[np.maximum(place, 0)], -1)
    forward = forward_operator_of(rank.trace, rank.workings.tree)
    outer = np.where(forward >= 0, outer[forward], outer)
    begin, end = _times(rank, calls, loop[outer], forward)
    elements, alike = _elements(rank, rows[outer])
    apart = _are_apart(rank, found, joined, least.own_weights)
    return LoopsOverGroups(begin, end, int(loop.max()), groups, elements, alike, apart)


def _on_training_thread(rank: RankCase) -> Products:
    found = products(rank, differentiated=True)
    own = rank.trace.operators["thread"].to_numpy()[found.operator] == rank.training if len(found.at) else slice(None)
    return Products(found.operator[own], found.at[own], found.size[own])


def _runs(rank: RankCase, found: Products, least: Least) -> Iterator[_Run]:
    """Runs of products whose weights' sizes repeat, while the rows are those of one group after the other."""
    if len(found.at) < least.groups:
        return
    weight = np.unique(found.size[:, 1:], axis=0, return_inverse=True)[1].ravel()
    rows = found.size[:, 0]
    step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), found.at, side="right")
    taken = np.zeros(len(rows), np.bool_)
    for period in range(1, least.products + 1):
        same = (weight[period:] == weight[:-period]) & (step[period:] == step[:-period])
        for begin, behind in zip(*runs(same), strict=True):
            end = behind + period
            if end - begin < period * least.groups or taken[begin:end].any():
                continue
            run = _in_groups(rows, int(begin), int(end), period, least)
            if run is not None:
                taken[begin:end] = True
                yield run


def _in_groups(rows: NDArray[np.int64], begin: int, end: int, period: int, least: Least) -> _Run | None:
    """The groups of a run of products, if all products of a group have the same number of rows."""
    for first in range(begin, begin + period):
        groups = (end - first) // period
        if groups < least.groups:
            return None
        of_groups = rows[first : first + groups * period].reshape(groups, period)
        own = of_groups[:, 0]
        change = np.sign(np.diff(own))
        turns = float(np.mean(change[1:] * change[:-1] < 0))
        if (of_groups == own[:, None]).all() and len(np.unique(own)) >= least.sizes and turns >= least.turns:
            return _Run(first, period, groups)
    return None


def _widened(names: NDArray[np.int64], heads: NDArray[np.int64], last: int) -> tuple[int, int]:
    """The first and last call of a loop, with the calls around its products that other groups have, too."""
    one, other = int(heads[0]), int(heads[1])
    before = 0
    while before < other - one - 1 and one - before > 0 and names[one - before - 1] == names[other - before - 1]:
        before += 1
    ends = int(heads[-1]) - int(heads[-2])
    after = 0
    while int(heads[-1]) + after < last or (
        after < ends - before - 1
        and int(heads[-1]) + after + 1 < len(names)
        and names[int(heads[-1]) + after + 1] == names[int(heads[-2]) + after + 1]
    ):
        after += 1
    return one - before, max(last, int(heads[-1]) + after)


def _learns_between(rank: RankCase, heads: NDArray[np.intp]) -> bool:
    """Whether a backward pass runs between groups: then each is a batch of its own."""
    at = rank.trace.operators["ts_ns"].to_numpy()
    back = at[rank.backward]
    return bool(((back > at[heads[0]]) & (back < at[heads[-1]])).any())


def _is_fed(rank: RankCase, heads: NDArray[np.intp]) -> bool:
    """Whether something is copied from the host, or exchanged with other ranks, for most groups."""
    fed = rank.device_named(lambda name: any(part in name for part in TO_DEVICE))
    fed |= rank.workings.classified.class_of == COMMUNICATION
    at = rank.launch_time[fed]
    group = np.unique(np.searchsorted(rank.trace.operators["ts_ns"].to_numpy()[heads], at, side="right"))
    return int(np.count_nonzero((group > 0) & (group < len(heads)))) * 2 > len(heads)


def _are_apart(rank: RankCase, found: Products, loops: list[_Run], own_weights: float) -> bool:
    """Whether no group needs another's result: each has its own module or weights, or all are parts of one whole.

    Parts of one whole have the same sum of rows in each loop of a step. Otherwise a group may be a recurrence's step.
    """
    step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), found.at[[run.first for run in loops]], side="right")
    rows = [int(found.size[run.heads, 0].sum()) for run in loops]
    totals: dict[int, list[int]] = {}
    for number, total in zip(step.tolist(), rows, strict=True):
        totals.setdefault(number, []).append(total)
    if any(len(each) > 1 for each in totals.values()) and all(len(set(each)) == 1 for each in totals.values()):
        return True
    module = module_places(rank.trace, rank.workings.tree).own_path
    own = [module[found.operator[run.heads]] for run in loops]
    return all((one >= 0).all() and len(np.unique(one)) == len(one) for one in own) or _have_own_weights(
        rank, found, loops, own_weights
    )


def _have_own_weights(rank: RankCase, found: Products, loops: list[_Run], own_weights: float) -> bool:
    """Whether a backward pass accumulates a gradient for each product's weight: the groups share none."""
    table = rank.trace.operators
    added = np.flatnonzero(matching(table["name"], lambda name: name == ACCUMULATE))
    sizes = Counter(tuple(sorted(size)) for size in judged(table.select("input_dims")[added], first_size) if size)
    used: Counter[tuple[int, ...]] = Counter()
    for run in loops:
        used.update(tuple(sorted(size)) for size in found.size[run.products, 1:].tolist())
    return all(sizes[size] >= own_weights * count for size, count in used.items())


def _times(
    rank: RankCase, calls: NDArray[np.intp], loop: NDArray[np.int64], forward: NDArray[np.int32]
) -> tuple[Times, Times]:
    """Begin and end of loops, and of the stretches of their backward passes, by the number of each operator's loop."""
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()
    until = at + table["duration_ns"].to_numpy()
    engine = matching(table["name"], lambda name: name.startswith(ENGINE)) & (rank.workings.tree.parent < 0)
    back = np.flatnonzero(engine)
    back = back[np.argsort(at[back], kind="stable")]
    # AccumulateGrad, which sums gradients, has no forward operator, and belongs to the call before it.
    known = np.maximum.accumulate(np.where(forward[back] >= 0, np.arange(len(back)), 0))
    loop_of_back = loop.copy()
    loop_of_back[back] = loop[back[known]]
    begins, ends = [], []
    for own, number in ((calls[forward[calls] < 0], loop), (back, loop_of_back)):
        edges = np.flatnonzero(np.diff(number[own], prepend=0, append=0))
        of_loop = number[own[edges[:-1]]] > 0
        begins.append(at[own[edges[:-1][of_loop]]])
        ends.append(until[own[edges[1:][of_loop] - 1]])
    begin, end = np.concatenate(begins), np.concatenate(ends)
    order = np.argsort(begin, kind="stable")
    return begin[order], end[order]


def _elements(rank: RankCase, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Mask]:
    """Per operator the elements of those of its arguments that have its group's rows.

    Also which operators get the same sizes in groups of different numbers of rows: they work on whole tensors.
    """
    out = np.zeros(len(rows), np.int64)
    inside = np.flatnonzero(rows > 0)
    table = rank.trace.operators.select("name", "input_dims")[inside]
    sizes_of_groups = table.with_columns(rows=rows[inside]).select(pl.col("rows").n_unique().over("name", "input_dims"))
    alike = np.zeros(len(rows), np.bool_)
    alike[inside] = sizes_of_groups["rows"].to_numpy() > 1
    for row, given in zip(inside.tolist(), judged(table.select("input_dims"), all_sizes), strict=True):
        own = int(rows[row])
        out[row] = sum(prod(size) for size in given if own in accumulate(size, mul))
    return out, alike
