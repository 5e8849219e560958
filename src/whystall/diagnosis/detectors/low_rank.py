"""Factors of matrices of low rank and a diagonal, which need no factor of the whole.

``W W^T + D`` of n rows and r columns is factored in r^3 and n r^2 multiplications (Woodbury), and its determinant with
it; as a whole it takes n^3. That it is of low rank shows in the product that makes it, if nothing but a diagonal is
added before it is factored.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.product_order import given_numbers
from whystall.diagnosis.detectors.recorded_sizes import first_size, sizes_by_argument
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import matching

_PRODUCTS: Final = frozenset({"aten::mm", "aten::bmm"})
_FACTORS: Final = frozenset({"aten::linalg_cholesky_ex", "aten::cholesky"})
# What makes a matrix of full rank of one that is not: kernels of Gaussian processes.
_SHAPES: Final = frozenset(
    f"aten::{name}{inplace}"
    for name in ("exp", "pow", "sqrt", "rsqrt", "tanh", "cos", "sin", "sigmoid", "softmax", "relu", "cosh", "square")
    for inplace in ("", "_")
)
_LEAST_ROWS: Final = 48
_MOST_RANK: Final = 1 / 4
_FURTHEST: Final = 400
# Small products are less well computed than large ones: so many times what their arithmetic says.
_SLOWER: Final = (1.0, 3.0, 8.0)


def low_rank(rank: RankCase) -> Wasted | None:
    """Such factors of forward passes; ``None`` where there are none, or sizes are not recorded."""
    table = rank.trace.operators
    asked = matching(table["name"], (_PRODUCTS | _FACTORS | _SHAPES).__contains__)
    forward = ~(rank.backward | rank.workings.tree.below(rank.backward))
    if not matching(table["name"], _FACTORS.__contains__).any():
        return None
    rows = np.flatnonzero(asked & forward)
    rows = rows[np.argsort(table["ts_ns"].to_numpy()[rows], kind="stable")]
    names, dims = table["name"].cast(str), table["input_dims"]
    made: dict[tuple[int, ...], tuple[int, int]] = {}
    found: dict[int, tuple[int, int]] = {}
    for place, row in enumerate(rows.tolist()):
        if names[row] in _PRODUCTS:
            sizes = [given[0] for given in sizes_by_argument(dims[row])[:2] if len(given) == 1]
            if len(sizes) == 2 and _is_low(sizes[0], sizes[1]):
                made[*sizes[0][:-1], sizes[1][-1]] = (sizes[0][-1], place)
            continue
        shape = first_size(dims[row])
        if names[row] in _SHAPES:
            made = {size: one for size, one in made.items() if prod(size) != prod(shape)}
        elif shape in made and place - made[shape][1] <= _FURTHEST:
            found[prod(shape)] = (shape[-1], made[shape][0])
    if not found:
        return None
    marked = given_numbers(rank, frozenset(found))
    many, few = max(found.values())
    least, expected, most = (min(times * few / many, 1.0) for times in _SLOWER)
    return Wasted(
        operators=marked | rank.workings.tree.below(marked),
        left=(least, expected, most),
        what="on the whole matrix, with its backward pass",
        facts=(evidence.count("rows of the matrix", many), evidence.count("its rank, beside a diagonal", few)),
        method="replay: the arithmetic of a factor of its rank",
        detail=f"a matrix of {many:,} rows is factored whole, which is one of rank {few} and a diagonal",
        remedy="low_rank",
    )


def _is_low(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether a product makes a square matrix of much lower rank than rows."""
    alike = len(left) == len(right) > 1 and left[:-2] == right[:-2] and left[-1] == right[-2]
    return alike and left[-2] == right[-1] >= _LEAST_ROWS and 0 < left[-1] <= _MOST_RANK * left[-2]
