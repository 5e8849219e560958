"""Matrices that `matmul` repeats for each of a batch: `x[:, None] @ w`, where one product for all rows reads each once.

Of two tensors of four dimensions and more torch expands both to all of the batch and copies what it has expanded, so
that a matrix of weights is written and read as often as it is used, and its gradient is made for each use and summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.going_back import backward_of
from whystall.diagnosis.detectors.recorded_sizes import Shape, sizes_by_argument
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of

# Fewer copies, and smaller ones, cost little.
_LEAST_TIMES: Final = 4
_LEAST_ELEMENTS: Final = 1 << 14
_BATCHED: Final = 4
# What is left for so many rows to each copy is rows / (rows + this): 0.01 for one, 0.17 for 16, 0.6 for 128. Measured
# for nine shapes on two cores, forward and backward: 0.01, 0.03 (4 rows), 0.1 (10), 0.11 (16), 0.32 (32), 0.57 (128).
_ROWS: Final = 80
_MOST_LEFT: Final = 0.5
_OFF: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Product:
    times: int
    matrices: int
    rows: int

    @property
    def left(self) -> float:
        return self.rows / (self.rows + _ROWS)


def broadcast_products(rank: RankCase) -> Wasted | None:
    """Such products; ``None`` where there are none, or sizes are not recorded."""
    table = rank.trace.operators
    if table["input_dims"].null_count() == len(table):
        return None
    # Where one of the two has two dimensions torch may fold the other into rows and copy nothing: one product says so.
    batched = rows_of(table["parent"])[matching(table["name"], lambda name: name == "aten::bmm")]
    is_batched = np.zeros(len(table), np.bool_)
    is_batched[batched[batched >= 0]] = True
    rows = np.flatnonzero(matching(table["name"], lambda name: name == "aten::matmul") & is_batched & ~rank.backward)
    told = judged(table.select("input_dims")[rows], _repeated)
    found = {row: one for row, one in zip(rows.tolist(), told, strict=True) if one is not None}
    if not found:
        return None
    marked = np.zeros(len(table), np.bool_)
    marked[list(found)] = True
    lasts = table["duration_ns"].to_numpy()
    left = sum(float(lasts[row]) * one.left for row, one in found.items()) / max(float(lasts[marked].sum()), 1.0)
    marked |= rank.workings.tree.below(marked)
    largest = max(found.values(), key=lambda one: one.times * one.matrices)
    return Wasted(
        operators=marked | backward_of(rank, marked),
        left=(left / _OFF, left, min(left * _OFF, 1.0)),
        what="in products with matrices that are copied for each of a batch, with their backward pass",
        facts=(
            evidence.count("copies of each matrix", largest.times),
            evidence.count("matrices", largest.matrices),
            evidence.count("rows that each copy is multiplied by", largest.rows),
        ),
        method="replay: what one product for all rows took of it where both were measured",
        detail=f"{largest.matrices:,} matrices are copied {largest.times:,} times each for a product",
        remedy="broadcast",
    )


def _repeated(dims: str | None) -> _Product | None:
    """What of a product's operands is repeated for the other's batch."""
    given = sizes_by_argument(dims)
    if len(given) < 2 or not (given[0] and given[1]):
        return None
    (one, other) = given[0][0], given[1][0]
    if len(one) < 2 or len(other) < 2 or max(len(one), len(other)) < _BATCHED:
        return None
    batch = prod(np.broadcast_shapes(one[:-2], other[:-2])) if _fit(one, other) else 0
    found = [
        _Product(batch // prod(matrix[:-2]), prod(matrix[:-2]), rows)
        for matrix, rows in ((one, other[-1]), (other, one[-2]))
        if 0 < prod(matrix[:-2]) * _LEAST_TIMES <= batch and min(matrix[-2:]) > 1 and rows > 0
        if batch * prod(matrix[-2:]) >= _LEAST_ELEMENTS
    ]
    best = min(found, key=lambda each: each.left, default=None)
    return best if best is not None and best.left <= _MOST_LEFT else None


def _fit(one: Shape, other: Shape) -> bool:
    pairs = zip(one[-3::-1], other[-3::-1], strict=False)
    return all(mine == its or 1 in {mine, its} for mine, its in pairs)
