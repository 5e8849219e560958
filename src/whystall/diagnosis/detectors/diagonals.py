"""Diagonal matrices that are factored, inverted and multiplied as if they were full: a Gaussian of independent numbers.

A recording does not hold a matrix's values; it shows that it was made of its diagonal (`torch.diag_embed`) and that
only views and checks came between that and the factorization.
"""

from __future__ import annotations

from bisect import bisect_left
from math import prod
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import Shape, first_size

_MAKES: Final = "aten::diag_embed"
_FACTORS: Final = frozenset({"aten::linalg_cholesky_ex", "aten::linalg_cholesky", "aten::cholesky"})
# Views of it, copies, and the reads of its parameters by a distribution.
_LEAVES: Final = frozenset(
    f"aten::{name}"
    for name in (
        *(
            "expand",
            "mT",
            "transpose",
            "view",
            "reshape",
            "contiguous",
            "clone",
            "to",
            "detach",
            "unsqueeze",
            "squeeze",
        ),
        *("isclose", "allclose", "all", "any", "eq", "isfinite", "isnan", "broadcast_to", "expand_as", "diagonal"),
    )
)
# Numbers one by one are checked, too, and their logarithms are taken.
_LEFT: Final = (0.05, 0.2, 0.5)
_BATCHED: Final = 3
_LEAST_ROWS: Final = 2


def diagonals(rank: RankCase) -> Wasted | None:
    """Batches of diagonal matrices that are factored; ``None`` where there are none, or sizes are not recorded."""
    table, tree = rank.trace.operators, rank.workings.tree
    makers = matching(table["name"], lambda name: name == _MAKES)
    factors = matching(table["name"], _FACTORS.__contains__)
    if not makers.any() or not factors.any():
        return None
    first = judged(table.select("input_dims"), first_size)
    square = np.array([one[-1] if _is_batch(one) else 0 for one in first], np.int64)
    backward = rank.backward | tree.below(rank.backward)
    outermost = ~tree.below(np.ones(len(table), np.bool_)) & ~backward
    leaves = matching(table["name"], _LEAVES.__contains__)
    known: set[tuple[int, int]] = set()
    for size in {first[row] for row in np.flatnonzero(factors & (square > 0) & ~backward)}:
        of_size = np.array([one == size for one in first], np.bool_) & outermost
        made = [row for row in np.flatnonzero(makers & ~backward).tolist() if (*first[row], first[row][-1]) == size]
        changed = np.flatnonzero(of_size & ~leaves & ~factors).tolist()
        if made and all(_made_last(row, made, changed) for row in np.flatnonzero(of_size & factors).tolist()):
            known.add(_number(size))
    own = np.array([_is_batch(one) and _number(one) in known for one in first], np.bool_) & ~backward
    if not (own & factors).any():
        return None
    back = np.zeros(len(table), np.bool_)
    if "sequence" in table.columns:
        sequence = table["sequence"].fill_null(-1).to_numpy()
        back = rank.backward & np.isin(sequence, sequence[own & (sequence >= 0)])
    marked = own | back
    rows = max(rows for _, rows in known)
    return Wasted(
        operators=marked | tree.below(marked),
        left=_LEFT,
        what="in operators on diagonal matrices",
        facts=(evidence.count("rows of such a matrix", rows),),
        method="replay: the same of their diagonals",
        detail=f"diagonal matrices of {rows:,} rows are factored as full ones",
        remedy="diagonal",
    )


def _is_batch(size: Shape) -> bool:
    return len(size) >= _BATCHED and size[-1] == size[-2] >= _LEAST_ROWS


def _number(size: Shape) -> tuple[int, int]:
    """How many matrices of how many rows: a batch may be turned into a longer or a shorter one."""
    return prod(size[:-2]), size[-1]


def _made_last(row: int, made: list[int], changed: list[int]) -> bool:
    """Whether the last thing that made a matrix of this size before a row was a diagonal."""
    at, other = bisect_left(made, row), bisect_left(changed, row)
    return at > 0 and (other == 0 or changed[other - 1] < made[at - 1])
