"""Iterations over X X^T where X^T X is smaller: of a tall matrix the polynomial of its rows is that of its columns.

(X X^T) X = X (X^T X): a matrix of m rows and n < m columns is iterated on with products of n by n where it is turned
around first (the Newton-Schulz iteration of Muon and its kin). Sizes show it: a product of m x n by n x m, at once
followed by one of m x m by m x m and one of m x m by m x n. Attention has no product of the second kind.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.prefixes import products
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase

# Of a matrix that is nearly square little is saved.
_TALLER: Final = 1.25
_LEAST_ROWS: Final = 32
# Small products are less well computed than large ones: so many times what their arithmetic says, at most.
_SLOWER: Final = 2.0


def tall_grams(rank: RankCase) -> Wasted | None:
    """Such iterations on tall matrices; ``None`` where there are none, or sizes are not recorded."""
    found = products(rank)
    size = [tuple(each) for each in found.size.tolist()]
    marked = np.zeros(len(rank.trace.operators), np.bool_)
    lasts = rank.trace.operators["duration_ns"].to_numpy()
    taken, left, largest = 0.0, 0.0, (0, 0)
    for at, (rows, depth, columns) in enumerate(size[:-2]):
        tall = rows == columns >= _LEAST_ROWS and rows >= _TALLER * depth
        if tall and size[at + 1] == (rows, rows, rows) and size[at + 2] == (rows, rows, depth):
            three = found.operator[at : at + 3]
            marked[three] = True
            ns = float(lasts[three].sum())
            taken += ns
            left += ns * (2 * depth**2 * rows + depth**3) / (2 * rows**2 * depth + rows**3)
            largest = max(largest, (rows, depth))
    if not taken:
        return None
    share = left / taken
    rows, depth = largest
    return Wasted(
        operators=marked | rank.workings.tree.below(marked),
        left=(share, min(share * (1 + _SLOWER) / 2, 1.0), min(share * _SLOWER, 1.0)),
        what="in products of a matrix with itself, turned around",
        facts=(evidence.count("rows of the largest", rows), evidence.count("its columns", depth)),
        method="replay: the same products of the smaller side",
        detail=f"a matrix of {rows:,} rows and {depth:,} columns is iterated on by its rows",
        remedy="turned",
    )
