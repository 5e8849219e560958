"""Inverses of matrices that are multiplied by a few columns alone: a solution of as many equations takes a fraction.

Nobody records which tensor an operator is given; the sizes tell. Where any product outside of the backward pass is
given a matrix of the inverse's size and many columns, nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.recorded_sizes import Shape, all_sizes, first_size
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import judged, matching

_INVERSES: Final = frozenset({"aten::inverse", "aten::linalg_inv", "aten::linalg_inv_ex"})
# They factor the same matrix once more: a factor has its determinant on the diagonal.
_DETERMINANTS: Final = frozenset(
    {"aten::logdet", "aten::slogdet", "aten::linalg_slogdet", "aten::_linalg_slogdet", "aten::det", "aten::linalg_det"}
    | {"aten::_linalg_det"}
)
_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv"})
# A factor takes a third (LU) or an eighth (Cholesky) of what an inverse takes, its backward pass likewise.
_LEFT: Final = (0.1, 0.3, 0.5)
_LEAST_ROWS: Final = 32
_FEW: Final = 1 / 4


def inverted(rank: RankCase) -> Wasted | None:
    """Inverses of which few columns are needed; ``None`` where there are none, or sizes are not recorded."""
    table = rank.trace.operators
    inverses = matching(table["name"], _INVERSES.__contains__)
    if not inverses.any():
        return None
    first = judged(table.select("input_dims"), first_size)
    size = np.array([one[-1] if len(one) > 1 and one[-1] == one[-2] else 0 for one in first], np.int64)
    columns = _most_columns(rank, set(size[inverses].tolist()) - {0})
    found = [rows for rows, most in columns.items() if rows >= _LEAST_ROWS and 0 < most <= _FEW * rows]
    own = (inverses | matching(table["name"], _DETERMINANTS.__contains__)) & np.isin(size, found)
    own &= ~rank.backward
    if not (own & inverses).any():
        return None
    back = np.zeros(len(table), np.bool_)
    if "sequence" in table.columns:
        sequence = table["sequence"].fill_null(-1).to_numpy()
        back = rank.backward & np.isin(sequence, sequence[own & (sequence >= 0)])
    marked = own | back
    rows = max(found)
    most = columns[rows]
    return Wasted(
        operators=marked | rank.workings.tree.below(marked),
        left=_LEFT,
        what="inverting, and what belongs to it",
        facts=(
            evidence.count("rows of a matrix that is inverted", rows),
            evidence.count("columns, at most, that its inverse is multiplied by", most),
        ),
        method="replay: one factor of the matrix, and the solution of these columns",
        detail=f"a matrix of {rows:,} rows is inverted for {most:,} {'column' if most == 1 else 'columns'}",
        remedy="solved",
    )


def _most_columns(rank: RankCase, sizes: set[int]) -> dict[int, int]:
    """By the rows of square matrices the most columns (or rows) of what they are multiplied by in forward passes."""
    table, tree = rank.trace.operators, rank.workings.tree
    backward = rank.backward | tree.below(rank.backward)
    products = np.flatnonzero(matching(table["name"], _PRODUCTS.__contains__) & ~backward)
    out: dict[int, int] = {}
    for given in set(judged(table.select("input_dims")[products].cast(pl.String), all_sizes)):
        for rows in sizes:
            if columns := _columns(given, rows):
                out[rows] = max(out.get(rows, 0), columns)
    return out


def _columns(given: Sequence[Shape], rows: int) -> int:
    """The columns (or rows) that a square matrix of so many rows is multiplied by; 0 where none of that size is."""
    factors = [one for one in given[-2:] if one]
    square = [one for one in factors if len(one) > 1 and one[-1] == one[-2] == rows]
    others = [one for one in factors if one not in square]
    if not square:
        return 0
    if not others:
        return rows
    other = others[0]
    return 1 if len(other) == 1 else min(other[-2:]) if rows in other[-2:] else 0
