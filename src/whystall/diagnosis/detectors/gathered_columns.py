"""Columns that are picked by their numbers from a large matrix whose rows stand together in memory.

Each number of a picked column lies in a line of the cache of its own, so that a sixteenth of what is read is used.
Which dimension is picked from shows in the view that indexing makes of the matrix (a stride of nothing), or in its
arguments.
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import polars as pl

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.recorded_sizes import first_size
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import matching

_INDEX: Final = "aten::index"
_INDEX_SELECT: Final = "aten::index_select"
_MATRIX: Final = 2
# Smaller ones stay in caches (4 MiB).
_LEAST_ELEMENTS: Final = 1 << 20
_LEAST_ROWS: Final = 32
# A few columns are a choice of features, whose rows are wanted elsewhere.
_LEAST_PICKED: Final = 16
# Of more of the columns a line of the cache holds several.
_MOST_PICKED: Final = 1 / 4
# Rows are picked at 0.4 to 1.5 ns for each number, columns of large matrices at 4 to 21.
_SLOW_NS: Final = 3.0
# What rows took of the time of columns, for five sizes of 1 M to 64 M numbers: 0.03 to 0.26.
_LEFT: Final = (0.03, 0.1, 0.35)


def gathered_columns(rank: RankCase) -> Wasted | None:
    """Such calls of a forward pass; ``None`` where there are none, or strides are not recorded."""
    table = rank.trace.operators
    if "concrete_inputs" not in table.columns or "input_strides" not in table.columns:
        return None
    forward = ~(rank.backward | rank.workings.tree.below(rank.backward))
    asked = matching(table["name"], {_INDEX, _INDEX_SELECT}.__contains__) & forward
    lasts = table["duration_ns"].to_numpy()
    found = np.zeros(len(table), np.bool_)
    largest = (0, 0, 0)
    for row in np.flatnonzero(asked).tolist():
        rows, columns, picked = _picked(table, row)
        large = (
            rows * columns >= _LEAST_ELEMENTS
            and rows >= _LEAST_ROWS
            and _LEAST_PICKED <= picked <= _MOST_PICKED * columns
        )
        if large and lasts[row] >= _SLOW_NS * rows * picked:
            found[row] = True
            largest = max(largest, (rows, columns, picked))
    if not found.any():
        return None
    rows, columns, picked = largest
    return Wasted(
        operators=found | rank.workings.tree.below(found),
        left=_LEFT,
        what="picking columns",
        facts=(
            evidence.count("columns of the matrix", columns),
            evidence.count("of them are picked at a time", picked),
        ),
        method="replay: rows picked instead, by measured shares",
        detail=f"{picked:,} of {columns:,} columns are picked from a matrix whose {rows:,} rows stand together",
        remedy="columns",
    )


def _picked(table: pl.DataFrame, row: int) -> tuple[int, int, int]:
    """Rows and columns of the matrix, and how many columns are picked; nothing where it is something else."""
    name, dims, concrete, strides = (str(table[what][row] or "") for what in _TOLD)
    size = first_size(dims)
    try:
        stride = tuple(json.loads(strides)[0])
        if len(size) != _MATRIX or stride != (size[1], 1):
            return 0, 0, 0
        if name == _INDEX_SELECT:
            of_columns = int(json.loads(concrete)[1]) in {1, -1}
            return (*size, json.loads(dims)[2][0]) if of_columns else (0, 0, 0)
        for view in table.filter(table["parent"] == row).select(*_TOLD).cast(pl.String).rows():
            if view[0] == "aten::as_strided":
                made, by = (json.loads(json.loads(view[2])[at]) for at in (1, 2))
                return (*size, int(made[1])) if by == [size[1], 0] and made[0] == size[0] else (0, 0, 0)
    except (ValueError, TypeError, IndexError, KeyError):
        pass
    return 0, 0, 0


_TOLD: Final = ("name", "input_dims", "concrete_inputs", "input_strides")
