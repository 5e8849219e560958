"""Features that a square matrix mixes before a layer makes them few: (A X) W where A (X W) is a fraction of the work.

A graph convolution's adjacency, sparse or dense, a matrix that mixes positions. Where the layer follows at once, with
nothing but views and copies between, the order is free; a bias is added in either.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from whystall.cost import kind_of
from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.recorded_sizes import Shape, first_size, sizes_by_argument
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of

# The matrices of each stand behind so many other arguments.
_PRODUCTS: Final = {"aten::mm": 0, "aten::_sparse_mm": 0, "aten::smm": 0, "aten::addmm": 1}
_PASSES_ON: Final = frozenset({"aten::contiguous", "aten::clone", "aten::to", "aten::_to_copy", "aten::copy_"})
_CALLS: Final = frozenset({"aten::matmul", "aten::linear", "aten::sparse_mm"})
_LAYER: Final = "aten::linear"
_ACCUMULATES: Final = "torch::autograd::AccumulateGrad"
_LEAST_ROWS: Final = 256
_LEAST_TIMES: Final = 2
# Few columns are less well worked on than many: so many times what their share says, at most.
_SLOWER: Final = 3.0


@dataclass(frozen=True, slots=True)
class _Product:
    rows: int
    shared: int
    columns: int


def propagated_wide(rank: RankCase) -> Wasted | None:
    """Such products, with those of their backward passes; ``None`` where there are none, or sizes are not recorded."""
    table = rank.trace.operators
    if table.is_empty() or table["input_dims"].null_count() == len(table):
        return None
    products = matching(table["name"], _PRODUCTS.__contains__)
    # A batch may have as many rows as a layer is wide: then the square matrix is what the layer is given.
    layers = rank.workings.tree.below(matching(table["name"], _LAYER.__eq__))
    rows = np.flatnonzero(products & ~rank.workings.tree.below(products))
    at, thread, parent = table["ts_ns"].to_numpy(), table["thread"].to_numpy(), rows_of(table["parent"])
    rows = rows[np.lexsort((at[rows], thread[rows]))]
    told = dict(zip(rows.tolist(), judged(table.select("name", "input_dims")[rows], _product), strict=True))
    behind = rank.backward | rank.workings.tree.below(rank.backward)
    names = table["name"].cast(str).to_numpy()
    own = (parent < 0) | np.isin(names[np.maximum(parent, 0)], list(_CALLS))
    busy = np.sort(at[own & ~products & ~np.array([_passes_on(name) for name in names], np.bool_)])
    weights = _trained(rank)
    mixed: dict[tuple[int, int], float] = {}
    for first, second in pairwise(rows.tolist()):
        one, other = told[first], told[second]
        if one is None or other is None or thread[first] != thread[second] or behind[first] or behind[second]:
            continue
        if layers[first] or weights & {(one.shared, one.columns), (one.columns, one.shared)}:
            continue
        square = one.rows == one.shared >= _LEAST_ROWS and other.rows == one.rows
        if not square or other.shared != one.columns or _LEAST_TIMES * other.columns > one.columns:
            continue
        if np.searchsorted(busy, at[second]) == np.searchsorted(busy, at[first], side="right"):
            share = other.columns / one.columns
            mixed[one.rows, one.columns] = max(share, mixed.get((one.rows, one.columns), 0.0))
    if not mixed:
        return None
    marked = np.zeros(len(table), np.bool_)
    marked[
        [row for row, one in told.items() if one and one.rows == one.shared and (one.rows, one.columns) in mixed]
    ] = True
    (size, columns), left = max(mixed.items(), key=lambda each: each[0][0] * each[0][1] * (1 - each[1]))
    return Wasted(
        operators=marked | rank.workings.tree.below(marked),
        left=(left, min(left * _SLOWER**0.5, 1.0), min(left * _SLOWER, 1.0)),
        what="in products with the square matrix",
        facts=(
            evidence.count("rows of the square matrix", size),
            evidence.count("columns that it mixes", columns),
            evidence.count("columns that the next product makes of them", round(columns * left)),
        ),
        method="replay: the square matrix on what the next product makes",
        detail=f"{columns:,} columns are mixed before a layer makes {columns * left:,.0f} of them",
        remedy="projected_first",
    )


def _trained(rank: RankCase) -> set[Shape]:
    """The sizes of the parameters that gradients are made of."""
    table = rank.trace.operators
    rows = np.flatnonzero(matching(table["name"], _ACCUMULATES.__eq__))
    return set(judged(table.select("input_dims")[rows], first_size))


def _passes_on(name: str) -> bool:
    return name in _PASSES_ON or name in _CALLS or kind_of(name) == "view" or name.startswith("aten::empty")


def _product(name: str, dims: str | None) -> _Product | None:
    first = _PRODUCTS[name]
    try:
        (left,), (right,) = sizes_by_argument(dims)[first : first + 2]
    except ValueError:
        return None
    if len(left) != 2 or len(right) != 2 or left[1] != right[0]:
        return None
    return _Product(left[0], left[1], right[1])
