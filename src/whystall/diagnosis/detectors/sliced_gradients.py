"""Parts that are picked from a tensor one by one: the gradient of each is as large as the whole, and filled with zeros.

``x[:, t]`` in a loop over time, ``table.weight[word]`` for each word. `torch.unbind`, or one indexing of all, goes back
through the whole once.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of
from whystall.trace.recorded_sizes import first_size

_PICKS: Final = re.compile(r"^autograd::engine::evaluate_function: (Select|Slice|Narrow|Index)Backward\d*$")
_FILLS: Final = frozenset({"aten::zero_", "aten::fill_"})
_SUMS: Final = frozenset({"aten::add", "aten::add_"})
# Fewer or smaller parts of one tensor cost too little.
_FEWEST: Final = 8
_LEAST_NUMBERS: Final = 1 << 14
_MOST_REMOVES: Final = 5
_LEFT: Final = (0.0, 0.1, 0.3)


def sliced_gradients(rank: RankCase) -> Wasted | None:
    """Such parts' backward work; ``None`` where there are none, or few."""
    table = rank.trace.operators
    if table.is_empty() or table["input_dims"].null_count() == len(table):
        return None
    picks = matching(table["name"], lambda name: bool(_PICKS.match(name)))
    parent = rows_of(table["parent"]).astype(np.int64)
    fills = np.flatnonzero(matching(table["name"], _FILLS.__contains__))
    wholes = judged(table.select("input_dims")[fills], first_size)
    whole_of = {
        above: whole
        for whole, above in zip(wholes, _picks_above(parent, picks, fills), strict=True)
        if above >= 0 and math.prod(whole) >= _LEAST_NUMBERS
    }
    # The engine adds a part's gradient to those of the parts before: k - 1 additions for k parts of one tensor.
    sums = np.flatnonzero(matching(table["name"], _SUMS.__contains__) & (parent >= 0))
    added = set(parent[sums[picks[parent[sums]]]].tolist())
    rows_by_whole: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, whole in whole_of.items():
        rows_by_whole[whole].append(row)
    many = {
        whole: rows
        for whole, rows in rows_by_whole.items()
        if len(rows) >= _FEWEST * max(len(rows) - sum(row in added for row in rows), 1)
    }
    if not many:
        return None
    chosen = np.zeros(len(table), np.bool_)
    chosen[[row for rows in many.values() for row in rows]] = True
    most = max(many, key=lambda whole: len(many[whole]) * math.prod(whole))
    alone = len(many[most]) - sum(row in added for row in many[most])
    count = len(many[most]) / max(alone, 1)
    return Wasted(
        operators=chosen | rank.workings.tree.below(chosen),
        left=_LEFT,
        what="in their gradients, and in adding these",
        facts=(
            evidence.count("parts of one tensor that are picked one by one", count),
            evidence.count("numbers in the gradient of each, of which most are zeros", math.prod(most)),
        ),
        method="replay: one pass back through the whole",
        detail=f"{count:,.0f} parts are picked from a tensor one by one, and each has a gradient as large as it",
        remedy="unbound",
    )


def _picks_above(parent: NDArray[np.int64], picks: Mask, rows: NDArray[np.intp]) -> list[int]:
    """The backward node of a part that calls each operator, within a few levels; -1 where there is none."""
    above = parent[rows].astype(np.int64)
    for _ in range(_MOST_REMOVES):
        further = (above >= 0) & ~picks[np.maximum(above, 0)]
        above = np.where(further, parent[np.maximum(above, 0)], above)
    return [int(row) if row >= 0 and picks[row] else -1 for row in above]
