"""Factors of a low-rank matrix plus a diagonal, which need no factor of the whole.

``W W^T + D`` of n rows and r columns is factored in r^3 and n r^2 multiplications (Woodbury), and its determinant with
it; as a whole it takes n^3. Its low rank shows in the product that makes it, if only a diagonal is added before it is
factored. A recording does not hold the addend: there may be one sum at most, and an operator that makes a diagonal.
(The running mean of such products has full rank, and takes two sums, or ``lerp``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import distinct, matching
from whystall.trace.recorded_sizes import Shape, all_sizes

_PRODUCTS: Final = frozenset({"aten::mm", "aten::bmm"})
_FACTORS: Final = frozenset({"aten::linalg_cholesky_ex", "aten::cholesky"})
# Operations that give a low-rank matrix full rank: kernels of Gaussian processes.
_SHAPES: Final = frozenset(
    f"aten::{name}{inplace}"
    for name in (
        "lerp",
        "exp",
        "pow",
        "sqrt",
        "rsqrt",
        "tanh",
        "cos",
        "sin",
        "sigmoid",
        "softmax",
        "relu",
        "cosh",
        "square",
    )
    for inplace in ("", "_")
)
_ADDS: Final = frozenset({"aten::add", "aten::add_"})
_DIAGONALS: Final = frozenset({"aten::diag_embed", "aten::diag", "aten::diagonal", "aten::eye", "aten::fill_diagonal_"})
_LEAST_ROWS: Final = 48
_MOST_RANK: Final = 1 / 4
_FURTHEST: Final = 400
# Small products run below the speed of large ones: this many times their arithmetic's time.
_SLOWER: Final = (1.0, 3.0, 8.0)


@dataclass(slots=True)
class _Product:
    """A square product of some rank, and the additions to tensors of its size since."""

    rank: int
    place: int
    sums: int = 0
    diagonal: bool = False


def low_rank(rank: RankCase) -> Wasted | None:
    """Such factors of forward passes; ``None`` where there are none, or sizes are not recorded."""
    found = _factored(rank)
    if not found:
        return None
    marked = _given(rank, frozenset(found))
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


def _factored(rank: RankCase) -> dict[int, tuple[int, int]]:
    """The rows and the rank of the matrix behind each factored number of elements."""
    table = rank.trace.operators
    asked = matching(table["name"], (_PRODUCTS | _FACTORS | _SHAPES | _ADDS | _DIAGONALS).__contains__)
    forward = ~(rank.backward | rank.workings.tree.below(rank.backward))
    if not matching(table["name"], _FACTORS.__contains__).any():
        return {}
    rows = np.flatnonzero(asked & forward)
    rows = rows[np.argsort(table["ts_ns"].to_numpy()[rows], kind="stable")]
    names, dims = table["name"].cast(str), table["input_dims"]
    made: dict[Shape, _Product] = {}
    found: dict[int, tuple[int, int]] = {}
    for place, row in enumerate(rows.tolist()):
        name, sizes = names[row], all_sizes(dims[row])
        if name in _PRODUCTS:
            if len(sizes) > 1 and _is_low(sizes[0], sizes[1]):
                made[*sizes[0][:-1], sizes[1][-1]] = _Product(sizes[0][-1], place)
        elif name in _SHAPES:
            made = {size: one for size, one in made.items() if all(prod(size) != prod(each) for each in sizes)}
        elif name in _ADDS or name in _DIAGONALS:
            for size, one in made.items():
                one.sums += name in _ADDS and sum(each[-2:] == size[-2:] for each in sizes) > 1
                one.diagonal |= name in _DIAGONALS and all(each[-1] == size[-1] for each in sizes)
        elif sizes and sizes[0] in made:
            one = made[sizes[0]]
            if one.diagonal and one.sums <= 1 and place - one.place <= _FURTHEST:
                found[prod(sizes[0])] = (sizes[0][-1], one.rank)
    return found


def _given(rank: RankCase, counts: frozenset[int]) -> NDArray[np.bool_]:
    """The operators with an argument of one of ``counts`` elements."""
    column = rank.trace.operators["input_dims"]
    known = [any(prod(size) in counts for size in all_sizes(text)) for text in distinct(column)]
    place = column.to_physical().fill_null(len(known)).to_numpy()
    given: NDArray[np.bool_] = np.array([*known, False], np.bool_)[place]
    return given


def _is_low(left: Shape, right: Shape) -> bool:
    """Whether a product makes a square matrix of much lower rank than rows."""
    alike = len(left) == len(right) > 1 and left[:-2] == right[:-2] and left[-1] == right[-2]
    return alike and left[-2] == right[-1] >= _LEAST_ROWS and 0 < left[-1] <= _MOST_RANK * left[-2]
