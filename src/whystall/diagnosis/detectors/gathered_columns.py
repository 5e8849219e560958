"""Columns that are picked by index from a large row-major matrix, and windows.

A window is many numbers of one row each (`table.t()[row[:, None], start[:, None] + offsets]`), which lie apart in a
column-major matrix.

Each number of a picked column lies in a cache line of its own, so that a sixteenth of the bytes read is used. The
picked dimension shows in the view that indexing makes of the matrix (a stride of 0), or in its arguments.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np
import polars as pl

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.replay.graph import Mask
from whystall.trace.columns import matching
from whystall.trace.recorded_sizes import first_size

_INDEX: Final = "aten::index"
_INDEX_SELECT: Final = "aten::index_select"
_MATRIX: Final = 2
# Smaller matrices stay in caches (4 MiB).
_LEAST_ELEMENTS: Final = 1 << 20
_LEAST_ROWS: Final = 32
# A few columns are a choice of features, whose rows are wanted elsewhere.
_LEAST_PICKED: Final = 16
# With a larger share of the columns a cache line holds several of them.
_MOST_PICKED: Final = 1 / 4
# Rows are picked at 0.4 to 1.5 ns for each number, columns of large matrices at 4 to 21.
_SLOW_NS: Final = 3.0
# Time of rows relative to columns, for five sizes of 1 M to 64 M numbers: 0.03 to 0.26.
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
    windows = _windows(rank, asked)
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
    found[list(windows)] = True
    if not found.any():
        return None
    if windows and not largest[0]:
        return _told_of_windows(rank, found, max(windows.values()))
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


def _windows(rank: RankCase, asked: Mask) -> dict[int, tuple[int, int]]:
    """Slow calls that pick windows across the lines of the cache: how many of them, and how long these are."""
    table = rank.trace.operators
    lasts = table["duration_ns"].to_numpy()
    found = {}
    for row in np.flatnonzero(asked).tolist():
        number, length = _window(table, row)
        if length >= _LEAST_PICKED and number and lasts[row] >= _SLOW_NS * number * length:
            found[row] = (number, length)
    return found


def _told_of_windows(rank: RankCase, found: Mask, largest: tuple[int, int]) -> Wasted:
    number, length = largest
    return Wasted(
        operators=found | rank.workings.tree.below(found),
        left=_LEFT,
        what="picking them",
        facts=(evidence.count("windows that are picked at a time", number), evidence.count("numbers in each", length)),
        method="replay: numbers that stand together picked instead, by measured shares",
        detail=f"{number:,} windows of {length:,} numbers each are picked across the rows in memory",
        remedy="columns",
    )


def _window(table: pl.DataFrame, row: int) -> tuple[int, int]:
    """How many windows a call picks from a large matrix, and how long they are, where their numbers stand apart.

    One of the two tensors of numbers is the same all along a window, which shows in its stride.
    """
    _, dims, _, strides = (str(table[what][row] or "") for what in _TOLD)
    size = first_size(dims)
    try:
        stride = tuple(parse_json(strides)[0])
        if len(size) != _MATRIX or prod(size) < _LEAST_ELEMENTS or 1 not in stride:
            return 0, 0
        inside = table.filter(table["parent"] == row).select(*_TOLD).cast(pl.String).rows()
        by = [(first_size(one[1]), tuple(parse_json(one[3])[0])) for one in inside if one[0] == "aten::reshape"]
        if len(by) != _MATRIX or by[0][0] != by[1][0] or len(by[0][0]) != _MATRIX:
            return 0, 0
        along = [each[1][1] for each in by]
    except (ValueError, TypeError, IndexError, KeyError):
        return 0, 0
    moving = next((at for at in range(_MATRIX) if along[at] and not along[1 - at]), None)
    apart = moving is not None and stride[1 - moving] == 1 and stride[moving] >= _LEAST_PICKED
    number, length = by[0][0]
    return (number, length) if apart else (0, 0)


def _picked(table: pl.DataFrame, row: int) -> tuple[int, int, int]:
    """Rows and columns of the matrix, and how many columns are picked; nothing where it is something else."""
    name, dims, concrete, strides = (str(table[what][row] or "") for what in _TOLD)
    size = first_size(dims)
    try:
        stride = tuple(parse_json(strides)[0])
        if len(size) != _MATRIX or stride != (size[1], 1):
            return 0, 0, 0
        if name == _INDEX_SELECT:
            of_columns = int(parse_json(concrete)[1]) in {1, -1}
            return (*size, parse_json(dims)[2][0]) if of_columns else (0, 0, 0)
        for view in table.filter(table["parent"] == row).select(*_TOLD).cast(pl.String).rows():
            if view[0] == "aten::as_strided":
                made, by = (parse_json(parse_json(view[2])[at]) for at in (1, 2))
                return (*size, int(made[1])) if by == [size[1], 0] and made[0] == size[0] else (0, 0, 0)
    except (ValueError, TypeError, IndexError, KeyError):
        pass
    return 0, 0, 0


_TOLD: Final = ("name", "input_dims", "concrete_inputs", "input_strides")
