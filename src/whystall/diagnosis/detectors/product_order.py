"""Products of three matrices in the costlier order: (Q K^T) V where Q (K^T V) is a fraction of the work.

A matrix that two products make and read is large where what they share is short: attention without a softmax, a
low-rank update that is multiplied out before it is applied, a projection of a projection. The order is free only where
nothing else touches what lies between: any operator but views, copies and factors of all of it that is given as many
numbers says that something does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.cost import kind_of
from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.recorded_sizes import Shape, sizes_by_argument
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import distinct, judged, matching

_PRODUCTS: Final = frozenset({"aten::mm", "aten::bmm"})
# What only passes a matrix on, or calls the product itself.
_PASSES_ON: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("clone", "contiguous", "copy_", "einsum", "empty_like", "flatten", "matmul", "reshape", "resolve_conj"),
        *("resolve_neg", "to", "_to_copy", "_reshape_alias", "_unsafe_view"),
    )
)
_SCALES: Final = frozenset({"aten::mul", "aten::div"})
# What is saved is at least this share of the work, and the matrix between is not small.
_LEAST_SAVED: Final = 0.5
_LEAST_ELEMENTS: Final = 1 << 14
# Small products are less well computed than large ones: so many times what their arithmetic says, at most.
_SLOWER: Final = 3.0
_LARGEST: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of ``batch`` pairs of matrices: ``rows`` x ``shared`` by ``shared`` x ``columns``."""

    batch: int
    rows: int
    shared: int
    columns: int

    @property
    def made(self) -> int:
        return self.batch * self.rows * self.columns

    @property
    def multiplications(self) -> int:
        return self.made * self.shared


def costlier_order(rank: RankCase) -> Wasted | None:
    """Such pairs of products in forward passes; ``None`` where there are none, or sizes are not recorded."""
    table = rank.trace.operators
    forward = ~(rank.backward | rank.workings.tree.below(rank.backward))
    rows = np.flatnonzero(matching(table["name"], _PRODUCTS.__contains__) & forward)
    at, thread = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    rows = rows[np.lexsort((at[rows], thread[rows]))]
    found = list(zip(rows.tolist(), judged(table.select("input_dims")[rows], _product), strict=True))
    saved: dict[int, tuple[float, _Product]] = {}
    for (first, one), (second, other) in pairwise(found):
        if one is None or other is None or thread[first] != thread[second]:
            continue
        share = _left(one, other)
        if share <= 1 - _LEAST_SAVED and one.made >= _LEAST_ELEMENTS:
            saved[one.made] = max(saved.get(one.made, (0.0, one)), (share, one), key=lambda each: each[0])
    alone = {made: each for made, each in saved.items() if not _is_read_otherwise(rank, made)}
    if not alone:
        return None
    marked = given_numbers(rank, frozenset(alone)) | _makes(rank, frozenset(alone))
    left, largest = max(alone.values(), key=lambda each: (each[1].made, each[0]))
    return Wasted(
        operators=marked | rank.workings.tree.below(marked),
        left=(left, min(left * _SLOWER**0.5, 1.0), min(left * _SLOWER, 1.0)),
        what="in products that make and read the large matrix between",
        facts=(
            evidence.count("its rows", largest.rows),
            evidence.count("its columns", largest.columns),
            evidence.count("what they share", largest.shared),
        ),
        method="replay: the arithmetic of the other order",
        detail=f"three matrices are multiplied by way of one of {largest.rows:,} by {largest.columns:,}",
        remedy="reordered",
    )


def _left(one: _Product, other: _Product) -> float:
    """The share of the multiplications of two products that the other order takes; 1 where they are no chain.

    The second is given what the first made, as its left or its right matrix, turned around or not.
    """
    between = sorted((one.rows, one.columns))
    for kept, mine in ((other.columns, (other.rows, other.shared)), (other.rows, (other.shared, other.columns))):
        if one.batch == other.batch and sorted(mine) == between and one.made > one.batch * one.shared * max(between):
            summed = other.shared
            rest = one.rows + one.columns - summed
            less = one.batch * one.shared * kept * (summed + rest)
            return less / (one.multiplications + other.multiplications)
    return 1.0


def _product(dims: str | None) -> _Product | None:
    try:
        (left,), (right,) = sizes_by_argument(dims)[:2]
    except ValueError:
        return None
    if not 2 <= len(left) == len(right) or left[-1] != right[-2] or left[:-2] != right[:-2]:
        return None
    found = _Product(prod(left[:-2]), left[-2], left[-1], right[-1])
    return found if 0 < found.multiplications < _LARGEST else None


def _is_read_otherwise(rank: RankCase, made: int) -> bool:
    """Whether anything in a forward pass but a product, a view, a copy or a factor is given so many numbers."""
    table = rank.trace.operators
    forward = ~(rank.backward | rank.workings.tree.below(rank.backward))
    names = table["name"].cast(str)
    for row in np.flatnonzero(given_numbers(rank, frozenset({made})) & forward).tolist():
        name = names[row]
        if name in _PRODUCTS or name in _PASSES_ON or kind_of(name) == "view":
            continue
        if name in _SCALES and len(list(_sizes(table["input_dims"][row]))) == 1:
            continue
        return True
    return False


def given_numbers(rank: RankCase, counts: frozenset[int]) -> NDArray[np.bool_]:
    """The operators that are given a tensor of so many numbers."""
    column = rank.trace.operators["input_dims"]
    known = [any(prod(size) in counts for size in _sizes(text)) for text in distinct(column)]
    place = column.to_physical().fill_null(len(known)).to_numpy()
    given: NDArray[np.bool_] = np.array([*known, False], np.bool_)[place]
    return given


def _makes(rank: RankCase, counts: frozenset[int]) -> NDArray[np.bool_]:
    """The products, of backward passes too, that make so many numbers."""
    table = rank.trace.operators
    rows = np.flatnonzero(matching(table["name"], _PRODUCTS.__contains__))
    out = np.zeros(len(table), np.bool_)
    told = judged(table.select("input_dims")[rows], _product)
    out[rows] = [one is not None and one.made in counts for one in told]
    return out


def _sizes(dims: str | None) -> Iterator[Shape]:
    for sizes in sizes_by_argument(dims):
        yield from sizes
