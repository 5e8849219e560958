"""Keys and values that are copied for each query head of a group, for one new token.

Where several query heads share keys and values (grouped-query attention), these are often repeated to as many heads
first. For a whole sequence that is little beside its scores; for one token the copies are read and written more often
than attention itself reads them, and the heads of a group might as well be rows of one query.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.recorded_sizes import Shape, all_sizes, first_size
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.trace.columns import judged, matching

_ATTENDS: Final = frozenset({"aten::scaled_dot_product_attention", "aten::matmul", "aten::bmm"})
# A batch, heads that have keys, query heads of each, places, values.
_REPEATED: Final = 5
_HEADS: Final = 4
# Both copies lie before their attention, which is among so many calls after the first.
_NEAR: Final = 48
_LEAST_ELEMENTS: Final = 1 << 14
# Queries are so few beside the places, by the heads of a group, that copies take longer than scores.
_FEWER: Final = 4
# Without them attention reads less from memory as well.
_LEFT: Final = (0.0, 0.05, 0.25)


def grouped_heads(rank: RankCase) -> Wasted | None:
    """Such copies; ``None`` where there are none, or sizes and strides are not recorded."""
    table = rank.trace.operators
    if "input_strides" not in table.columns or table["input_dims"].null_count() == len(table):
        return None
    clones = np.flatnonzero(matching(table["name"], lambda name: name == "aten::clone") & ~rank.backward)
    attends = matching(table["name"], _ATTENDS.__contains__)
    found = np.zeros(len(table), np.bool_)
    largest: Shape = ()
    sizes = judged(table.select("input_dims", "input_strides")[clones], _repeated)
    for row, size in zip(clones.tolist(), sizes, strict=True):
        if size and _is_attended(table, size, np.flatnonzero(attends[row : row + _NEAR]) + row):
            found[row] = True
            largest = max(largest, size, key=lambda one: one[2:4])
    if not largest:
        return None
    return Wasted(
        operators=found | rank.workings.tree.below(found),
        left=_LEFT,
        what="copying keys and values",
        facts=(
            evidence.count("heads that have keys and values", largest[1]),
            evidence.count("query heads of each", largest[2]),
            evidence.count("places", largest[3]),
        ),
        method="replay: without the copies",
        detail=f"keys and values of {largest[1]:,} heads are copied {largest[2]:,} times each for few new tokens",
        remedy="grouped",
    )


def _repeated(dims: str | None, strides: str | None) -> Shape:
    """The size of a copy whose third dimension was repeated; nothing of another."""
    size = first_size(dims)
    if len(size) != _REPEATED or size[2] < 2 or np.prod(size) < _LEAST_ELEMENTS:
        return ()
    try:
        stride = parse_json(strides or "")[0]
        return size if stride[2] == 0 and all(stride[:2]) and all(stride[3:]) else ()
    except (ValueError, TypeError, IndexError):
        return ()


def _is_attended(table: pl.DataFrame, size: Shape, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> bool:
    """Whether few queries are given what was repeated."""
    batch, heads, group, places, wide = size
    for row in rows.tolist():
        given = all_sizes(str(table["input_dims"][row] or ""))[:2]
        if len(given) == 2 and all(len(one) == _HEADS for one in given):
            query, keys = given
            same = keys[:2] == query[:2] == (batch, heads * group) and sorted(keys[2:]) == sorted((places, wide))
            if same and query[2] * group * _FEWER <= places:
                return True
    return False
