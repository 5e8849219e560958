"""Loops that multiply one group of rows after the other, each by weights of the same sizes: experts, types, samples.

The products repeat with the same weights' sizes, in groups of rows that differ in number from one to the next, up and
down: layers that follow each other have the same rows, a sequence or a batch that shrinks has ever fewer. A group that
is copied from the host, or exchanged with other ranks, is a batch of its own, and cannot be joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.backward import forward_operator_of
from whystall.analysis.kernel_classes import COMMUNICATION
from whystall.diagnosis.detectors.outer_calls import outer_calls, places_among
from whystall.diagnosis.detectors.prefixes import Products, products
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask, Times
from whystall.trace.columns import codes, judged, matching
from whystall.trace.recorded_sizes import all_sizes, first_size

_FROM_HOST: Final = "Memcpy HtoD"
_ENGINE: Final = "autograd::engine::"
_ACCUMULATE: Final = "torch::autograd::AccumulateGrad"
_MODULE: Final = "nn.Module:"
_NESTED: Final = 16
_MOSTLY: Final = 0.8


class Least(NamedTuple):
    """The properties of a loop that is worth joining: its groups, their numbers of rows, and the products of one."""

    groups: int
    sizes: int
    products: int
    turns: float
    """The share of groups at which their numbers of rows turn: larger than those before and behind, or smaller."""


class _Run(NamedTuple):
    """A loop as places among the products: the first one, the products of a group, and the groups."""

    first: int
    period: int
    groups: int


@dataclass(frozen=True, slots=True)
class LoopsOverGroups:
    """When each loop begins and ends, its backward passes among them, by time.

    ``loops`` and ``groups`` count those of forward passes; ``elements`` states for each operator how many elements of
    what it was given belong to its group's rows.
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
    runs = list(_runs(rank, found, least))
    if not runs:
        return None
    table = rank.trace.operators
    calls = outer_calls(rank)
    place = places_among(rank, calls)
    names = codes(table["name"])[calls]
    # Per call the rows of its group, and the number of its loop, from 1 on.
    rows, loop = (np.zeros(len(table) + 1, np.int64) for _ in range(2))
    groups = 0
    joined: list[_Run] = []
    for run in runs:
        heads = place[found.operator[run.first + run.period * np.arange(run.groups)]]
        last = int(place[found.operator[run.first + run.period * run.groups - 1]])
        if _learns_between(rank, calls[heads]) or _is_fed(rank, calls[heads]):
            continue
        first, last = _widened(names, heads, last)
        own = found.size[run.first + run.period * np.arange(run.groups), 0]
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
    return LoopsOverGroups(begin, end, int(loop.max()), groups, elements, alike, apart=_are_apart(rank, found, joined))


def _on_training_thread(rank: RankCase) -> Products:
    found = products(rank, differentiated=True)
    own = rank.trace.operators["thread"].to_numpy()[found.operator] == rank.training if len(found.at) else slice(None)
    return Products(found.operator[own], found.at[own], found.size[own])


def _runs(rank: RankCase, found: Products, least: Least) -> Iterator[_Run]:
    """Products that repeat with their weights' sizes, where the rows are those of one group after the other."""
    if len(found.at) < least.groups:
        return
    weight = np.unique(found.size[:, 1:], axis=0, return_inverse=True)[1].ravel()
    rows = found.size[:, 0]
    step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), found.at, side="right")
    taken = np.zeros(len(rows), np.bool_)
    for period in range(1, least.products + 1):
        same = (weight[period:] == weight[:-period]) & (step[period:] == step[:-period])
        edges = np.diff(same.astype(np.int8), prepend=0, append=0)
        for begin, end in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) + period, strict=True):
            if end - begin < period * least.groups or taken[begin:end].any():
                continue
            run = _in_groups(rows, int(begin), int(end), period, least)
            if run is not None:
                taken[begin:end] = True
                yield run


def _in_groups(rows: NDArray[np.int64], begin: int, end: int, period: int, least: Least) -> _Run | None:
    """The groups of a run of products, whose products all have the group's rows."""
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
    """The first and last call of a loop: with what comes before its first products and after its last, as in others."""
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
    """Whether a backward pass runs between groups: each is a batch of its own."""
    at = rank.trace.operators["ts_ns"].to_numpy()
    back = at[rank.backward]
    return bool(((back > at[heads[0]]) & (back < at[heads[-1]])).any())


def _is_fed(rank: RankCase, heads: NDArray[np.intp]) -> bool:
    """Whether something is copied from the host, or exchanged with other ranks, for most groups."""
    fed = matching(rank.trace.device_events["name"], lambda name: name.startswith(_FROM_HOST))
    fed |= rank.workings.classified.class_of == COMMUNICATION
    at = rank.launch_time[fed]
    group = np.unique(np.searchsorted(rank.trace.operators["ts_ns"].to_numpy()[heads], at, side="right"))
    return int(np.count_nonzero((group > 0) & (group < len(heads)))) * 2 > len(heads)


def _are_apart(rank: RankCase, found: Products, runs: list[_Run]) -> bool:
    """Whether no group needs another's result: each has its own module or weights, or all are parts of one whole.

    The parts of a whole have the same number of rows in each loop of a step. Else a group may be a recurrence's step.
    """
    step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), found.at[[run.first for run in runs]], side="right")
    rows = [int(found.size[run.first + run.period * np.arange(run.groups), 0].sum()) for run in runs]
    totals: dict[int, list[int]] = {}
    for number, total in zip(step.tolist(), rows, strict=True):
        totals.setdefault(number, []).append(total)
    if any(len(each) > 1 for each in totals.values()) and all(len(set(each)) == 1 for each in totals.values()):
        return True
    heads = [found.at[run.first + run.period * np.arange(run.groups)] for run in runs]
    return all(_in_own_modules(rank, at) for at in heads) or _have_own_weights(rank, found, runs)


def _in_own_modules(rank: RankCase, at: Times) -> bool:
    """Whether each of some instants lies in a call of a module of its own."""
    frames = rank.trace.python_functions
    modules = frames.filter(
        (frames["thread"] == rank.training) & pl.Series(matching(frames["name"], lambda name: name.startswith(_MODULE)))
    ).sort("ts_ns")
    if modules.is_empty():
        return False
    begin = modules["ts_ns"].to_numpy()
    end = begin + modules["duration_ns"].to_numpy()
    names = modules["name"].cast(str).to_list()
    inner: list[str] = []
    for instant in at.tolist():
        last = int(np.searchsorted(begin, instant, side="right")) - 1
        around = next((place for place in range(last, max(last - _NESTED, -1), -1) if end[place] > instant), None)
        inner.append("" if around is None else names[around])
    return "" not in inner and len(set(inner)) == len(inner)


def _have_own_weights(rank: RankCase, found: Products, runs: list[_Run]) -> bool:
    """Whether a backward pass adds a gradient for each product's weight, and not all to those of one."""
    table = rank.trace.operators
    added = np.flatnonzero(matching(table["name"], lambda name: name == _ACCUMULATE))
    sizes = Counter(tuple(sorted(size)) for size in judged(table.select("input_dims")[added], first_size) if size)
    used: Counter[tuple[int, ...]] = Counter()
    for run in runs:
        products_of = found.size[run.first : run.first + run.period * run.groups, 1:]
        used.update(tuple(sorted(size)) for size in products_of.tolist())
    return all(sizes[size] >= _MOSTLY * count for size, count in used.items())


def _times(
    rank: RankCase, calls: NDArray[np.intp], loop: NDArray[np.int64], forward: NDArray[np.int32]
) -> tuple[Times, Times]:
    """Begin and end of loops, and of the stretches of their backward passes, by the number of each operator's loop."""
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()
    until = at + table["duration_ns"].to_numpy()
    engine = matching(table["name"], lambda name: name.startswith(_ENGINE)) & (rank.workings.tree.parent < 0)
    back = np.flatnonzero(engine)
    back = back[np.argsort(at[back], kind="stable")]
    # AccumulateGrad, which sums gradients, has no forward, and belongs to the call before it.
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
    """Per operator the elements of the tensors that it was given and that have its group's rows.

    Also which operators are given the same for groups of other numbers of rows: they work on whole tensors.
    """
    out = np.zeros(len(rows), np.int64)
    inside = np.flatnonzero(rows > 0)
    table = rank.trace.operators.select("name", "input_dims")[inside]
    groups: dict[tuple[object, ...], set[int]] = {}
    for key, own in zip(table.cast(pl.String).iter_rows(), rows[inside].tolist(), strict=True):
        groups.setdefault(key, set()).add(own)
    alike = np.zeros(len(rows), np.bool_)
    alike[inside] = [len(groups[key]) > 1 for key in table.cast(pl.String).iter_rows()]
    for row, given in zip(inside.tolist(), judged(table.select("input_dims"), all_sizes), strict=True):
        own = int(rows[row])
        out[row] = sum(prod(size) for size in given if own in accumulate(size, mul))
    return out, alike
