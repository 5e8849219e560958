"""Tables of embeddings whose rows are brought to a norm when they are looked up, row by row (``max_norm``).

Torch does so on a CPU with some small operators for each row that is too long; after an optimizer's step most are.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import matching

_RENORMS: Final = "aten::embedding_renorm_"
_ONE_ROW: Final = "aten::linalg_vector_norm"
_FEWEST: Final = 64
# The rows that were looked up are brought to their norm in a few calls.
_LEFT: Final = (0.02, 0.1, 0.3)


def renormed_tables(rank: RankCase) -> Wasted | None:
    """Such lookups; ``None`` where there are none, or of few rows."""
    table, tree = rank.trace.operators, rank.workings.tree
    renorms = matching(table["name"], lambda name: name == _RENORMS)
    if not renorms.any():
        return None
    inside = tree.below(renorms)
    rows = int(np.count_nonzero(inside & matching(table["name"], lambda name: name == _ONE_ROW)))
    calls = int(np.count_nonzero(renorms))
    if rows < _FEWEST * calls:
        return None
    return Wasted(
        operators=renorms | inside,
        left=_LEFT,
        what="bringing rows to their norm, one by one",
        facts=(evidence.count("rows looked at in each lookup", rows / calls),),
        method="replay: a few calls for all rows that are looked up",
        detail="a table of embeddings with max_norm goes through its rows one by one",
        remedy="renormed",
    )
