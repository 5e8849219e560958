"""Items that a model is called with one at a time, and whose results are joined: one batched call would do.

The join states the number of items: a concatenation of that many tensors of one row each. Before it the same products
ran once for each item, and something in each turn has the size of a joined tensor. If a number was read in between for
each item, the next one may depend on it, and there is no finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching
from whystall.trace.recorded_sizes import Shape, all_sizes, sizes_by_argument

_JOINS: Final = frozenset({"aten::cat", "aten::stack"})
_READS: Final = "aten::_local_scalar_dense"
_FEWEST: Final = 4
# torch's profiler does not record sizes of longer lists.
_TOLD: Final = 30
# One of the next operators uses the joined result, if not the next.
_NEXT: Final = 8
_MATRIX: Final = 2
# Models have fewer products than this; at most `_MOST_TRIED` lengths of a turn are tried.
_LONGEST: Final = 1 << 14
_MOST_TRIED: Final = 64


@dataclass(frozen=True, slots=True)
class OneByOne:
    """The operators that were called for each item, with begin and end of their stretches.

    ``items`` are those of the largest join, ``back`` are the backward pass's calls for each of them.
    """

    operators: Mask
    back: Mask
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    items: int


def one_by_one(rank: RankCase, alike: NDArray[np.intp]) -> OneByOne | None:
    """Work done item by item on the training thread, by joins of its results.

    Args:
        rank: The rank.
        alike: Per operator a number that calls of its name and sizes have in common.
    """
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()
    rows = np.flatnonzero((table["thread"].to_numpy() == rank.training) & ~rank.backward)
    rows = rows[np.argsort(at[rows], kind="stable")]
    joins = np.flatnonzero(matching(table["name"][rows], _JOINS.__contains__))
    told = [_joined(*call) for call in table.select("name", "input_dims")[rows[joins]].cast(pl.String).iter_rows()]
    told = [
        _of_many(rank, rows[place + 1 : place + 1 + _NEXT]) if one is None else one
        for place, one in zip(joins, told, strict=True)
    ]
    # A recording may begin before a join and end after the last one: the work there covers only a part of the items.
    ends = [(int(place), *one, first) for first, (place, one) in enumerate(zip(joins, told, strict=True)) if one]
    if not ends:
        return None
    ends.append((len(rows), *ends[-1][1:3], 0))
    reads = matching(table["name"], lambda name: name == _READS)
    operators = np.zeros(len(table), np.bool_)
    begin, end, first = [], [], 0
    for place, items, elements, whole in ends:
        found = _repeated(rank, alike, rows[first:place], items, elements, whole=bool(whole))
        if found is not None and not reads[found].any():
            operators[found] = True
            begin.append(at[found[0]])
            end.append(at[found[-1]] + table["duration_ns"][int(found[-1])])
        first = place
    if not begin:
        return None
    items = max(one[1] for one in ends)
    often = np.bincount(alike[rank.backward], minlength=int(alike.max()) + 1) >= (items - 1) * len(begin)
    back = rank.backward & often[alike]
    back |= rank.workings.tree.below(back)
    return OneByOne(operators, back, np.array(begin), np.array(end), items)


def _joined(name: str, dims: str | None) -> tuple[int, int] | tuple[()] | None:
    """The number of tensors of one row each in a join, and the elements of each; empty for any other join.

    ``None`` where it is unknown: for lists of more than thirty tensors there are no sizes.
    """
    joined: tuple[Shape, ...] | None = next(iter(sizes_by_argument(dims)), None)
    if joined is not None and not joined:
        return None
    if not joined or len(joined) < _FEWEST or len(set(joined)) != 1:
        return ()
    one_row = joined[0][0] == 1 if name == "aten::cat" else len(joined[0]) == 1
    return (len(joined), prod(joined[0])) if one_row else ()


def _of_many(rank: RankCase, after: NDArray[np.intp]) -> tuple[int, int] | None:
    """The same for a join of more tensors than the recording states, by the next argument with more rows than that."""
    for text in rank.trace.operators["input_dims"][after].cast(pl.String).to_list():
        for size in all_sizes(text)[:1]:
            if size[0] > _TOLD and len(size) > 1:
                return size[0], prod(size[1:])
    return None


def _repeated(
    rank: RankCase, alike: NDArray[np.intp], since: NDArray[np.intp], items: int, elements: int, *, whole: bool
) -> NDArray[np.intp] | None:
    """The rows of work that repeats up to a join, the same products in turn, once for each of its items.

    If the recording lacks a part of the ``whole``, less often.
    """
    products = since[rank.workings.work.dense[since] > 0]
    if not len(products):
        return None
    kinds = alike[products]
    often = int(np.count_nonzero(kinds == kinds[-1]))
    for times in (items,) if whole else (items, often):
        turn = _turn(kinds, times) if times >= _FEWEST else 0
        if not turn:
            continue
        from_first, from_last = (int(np.flatnonzero(since == products[-turn * of])[0]) for of in (times, 1))
        inside = since[from_first:]
        if elements in _sizes(rank, since[from_last:]):
            _, kind, count = np.unique(alike[inside], return_inverse=True, return_counts=True)
            return inside[(count >= times - 1)[kind]]
    return None


def _turn(kinds: NDArray[np.intp], times: int) -> int:
    """The number of products in a turn, if the last ones are ``times`` equal turns; 0 where they are not."""
    longest = min(len(kinds) // times, _LONGEST)
    # A turn ends as the last one did, and so does the one before.
    ends = np.arange(1, longest + 1)
    ends = ends[(kinds[len(kinds) - 1 - ends] == kinds[-1]) & (kinds[len(kinds) - 1 - 2 * ends] == kinds[-1])]
    for turn in ends[::-1][:_MOST_TRIED].tolist():
        turns = kinds[len(kinds) - turn * times :].reshape(times, turn)
        if (turns == turns[0]).all():
            return int(turn)
    return 0


def _sizes(rank: RankCase, rows: NDArray[np.intp]) -> set[int]:
    """The elements of operators' inputs, and of products' and joins' results."""
    found: set[int] = set()
    for text in rank.trace.operators["input_dims"][rows].cast(str).unique().to_list():
        sizes = all_sizes(text)
        found.update(map(prod, sizes))
        found.update(sum(map(prod, joined)) for joined in sizes_by_argument(text) if len(joined) > 1)
        matrices = [size for size in sizes if len(size) == _MATRIX]
        found.update(one[0] * other[1] for one, other in pairwise(matrices))
    return found
