"""Rows of a table that are looked up only to be added up: `embedding(ids).mean(1)`, where a bag reads each row once.

The rows of all places are written, and read again by the sum; going back, each gets a gradient of its own. Anything
else that is given a tensor of that size reads the rows themselves.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.going_back import backward_of
from whystall.diagnosis.detectors.recorded_sizes import Shape, all_sizes, first_size, sizes_by_argument
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.trace.columns import judged, matching

_LOOKS_UP: Final = "aten::embedding"
_ADDS_UP: Final = frozenset({"aten::mean", "aten::sum"})
# What leaves padding out on the way, as a bag's weights do: a number for each row.
_WEIGHS: Final = frozenset({"aten::mul", "aten::mul_"})
_BACK: Final = "aten::embedding_dense_backward"
_LEAST_ELEMENTS: Final = 1 << 20
_FEWEST_PLACES: Final = 16
# `benchmarks/bench_bags.py`: what a bag takes of both, where the rows are at least 4 MiB.
_LEFT: Final = (0.1, 0.25, 0.5)
_LEFT_WITH_BACKWARD: Final = (0.25, 0.45, 0.9)


def bagged_rows(rank: RankCase) -> Wasted | None:
    """Such lookups and sums; ``None`` where there are none, or sizes are not recorded."""
    table, tree = rank.trace.operators, rank.workings.tree
    if table["input_dims"].null_count() == len(table):
        return None
    outermost = ~rank.backward & ~tree.below(rank.backward) & (table["parent"].fill_null(-1).to_numpy() < 0)
    rows = np.flatnonzero(outermost & matching(table["name"], lambda name: name in (_LOOKS_UP, *_ADDS_UP)))
    told = judged(table.select("name", "input_dims", "concrete_inputs")[rows], _rows_of)
    looked_up = {size for name, size in told if name == _LOOKS_UP}
    summed = {size for name, size in told if name in _ADDS_UP} & looked_up
    sizes = {size for size in summed if _large(size)} - {()}
    if not sizes:
        return None
    given = np.flatnonzero(outermost)
    reading = judged(table.select("name", "input_dims")[given], lambda name, dims: _reads(name, dims, sizes))
    sizes -= {size for others in reading for size in others}
    marked = np.zeros(len(table), np.bool_)
    marked[rows] = [size in sizes for _, size in told]
    if not marked.any():
        return None
    back = backward_of(rank, marked)
    if not (back & matching(table["name"], lambda name: name == _BACK)).any():
        back[:] = False  # of a sparse gradient a bag saves nothing
    largest = max(sizes, key=prod)
    return Wasted(
        operators=marked | tree.below(marked) | back,
        left=_LEFT_WITH_BACKWARD if back.any() else _LEFT,
        what="in looking rows up and adding them up" + (", with their backward pass" if back.any() else ""),
        facts=(evidence.count("rows that are looked up for each sum", largest[1]),),
        method="replay: what a bag took of it where both were measured",
        detail=f"{prod(largest[:2]):,} rows are looked up only to be added up",
        remedy="bagged",
    )


def _large(size: Shape) -> bool:
    return len(size) > 1 and prod(size) >= _LEAST_ELEMENTS and size[1] >= _FEWEST_PLACES


def _rows_of(name: str, dims: str | None, concrete: str | None) -> tuple[str, Shape]:
    """The rows that a lookup makes, or that are added up over their second dimension; nothing of other calls."""
    if name == _LOOKS_UP:
        given = sizes_by_argument(dims)
        pair = [each[0] for each in given[:2] if each]
        return name, (*pair[1], pair[0][1]) if len(pair) > 1 and len(pair[0]) == len(pair[1]) == 2 else ()
    size = first_size(dims)
    try:
        over = parse_json(parse_json(concrete or "[]")[1])
    except (ValueError, TypeError, IndexError):
        return name, ()
    return name, size if len(size) == 3 and over in ([1], [-2]) else ()


def _reads(name: str, dims: str | None, sizes: set[Shape]) -> set[Shape]:
    """The rows that another operator is given, or that are multiplied by as many others."""
    given = [size for size in all_sizes(dims) if size in sizes]
    weighs = name in _WEIGHS and len(given) == 1
    return set() if weighs or name == _LOOKS_UP or name in _ADDS_UP else set(given)
