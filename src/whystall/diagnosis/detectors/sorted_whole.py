"""Sorts whose first few elements are read: finding these takes one pass, where a sort takes many.

A recording does not state which tensor an operator receives; sizes identify it. Between a sort and the next product or
sort, each operator with an argument of the sorted size must slice the ends off it along the sorted dimension, or gather
few of its elements; if any other operator has one, there is no finding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.replay.graph import Mask
from whystall.trace.columns import distinct, judged, matching
from whystall.trace.recorded_sizes import Shape, all_sizes, first_size

_SORTS: Final = frozenset({"aten::argsort", "aten::sort", "aten::msort"})
_VIEWS: Final = frozenset({"aten::alias", "aten::as_strided", "aten::detach", "aten::narrow"})
_GATHERS: Final = frozenset({"aten::gather", "aten::index", "aten::index_select", "aten::take", "aten::take_along_dim"})
_INDEX: Final = "aten::index"
_COMPARES: Final = "aten::eq"
_FINDS: Final = frozenset({"aten::nonzero", "aten::nonzero_numpy", "aten::where", "aten::argmax"})
_CASTS: Final = frozenset({"aten::to", "aten::_to_copy", "aten::copy_"})
_SLICE: Final = "aten::slice"
# Share of a sort that a search for the first few leaves: at least, as expected, at most.
_LEFT: Final = (0.02, 0.1, 0.5)
_LEAST_SORTED: Final = 256
# The largest share that may be read: with more of it a search saves little.
_MOST_READ: Final = 1 / 8
_MOST_SIZES: Final = 8
_MOST_READERS: Final = 64


def sorted_whole(rank: RankCase) -> Wasted | None:
    """Sorts whose first or last few places alone are read; ``None`` where there are none, or sizes are not recorded."""
    table = rank.trace.operators
    if table["input_dims"].null_count() == len(table) or "concrete_inputs" not in table.columns:
        return None
    sorts = matching(table["name"], _SORTS.__contains__)
    outermost = np.flatnonzero(sorts & ~rank.workings.tree.below(sorts))
    dims = table["input_dims"]
    shapes = {size for size in judged(table.select("input_dims")[outermost], first_size) if size}
    longest = sorted(shapes, key=prod)[-_MOST_SIZES:]
    found = np.zeros(len(table), np.bool_)
    told: list[tuple[int, int]] = []
    ranks = 0
    for shape in longest:
        for row, readers in _with_readers(rank, outermost, _given(dims, shape), sorts):
            one = _place_of_one(table, shape, row, readers)
            ranks += one is not None
            one = one or _few_of(table, shape, row, readers)
            if one is not None:
                found[row] = True
                told.append(one)
    if not told:
        return None
    places, read = max(told)
    return Wasted(
        operators=found | rank.workings.tree.below(found),
        left=_LEFT,
        what="sorting",
        facts=(evidence.count("places that are sorted", places), evidence.count("of them are read", read)),
        method="replay: a pass that finds the few, in place of the sort",
        detail=f"{places:,} places are sorted, {read:,} are read",
        remedy="counted" if 2 * ranks > len(told) else "first_only",
    )


def _given(dims: pl.Series, shape: Shape) -> Mask:
    """The calls with an argument of this size."""
    told = [shape in all_sizes(text) for text in distinct(dims)]
    given: Mask = np.array([*told, False], np.bool_)[dims.to_physical().fill_null(len(told)).to_numpy()]
    return given


def _with_readers(
    rank: RankCase, outermost: NDArray[np.intp], given: Mask, sorts: Mask
) -> Iterator[tuple[int, list[int]]]:
    """The sorts of a size, each with the readers of that size after it and before the next one or product."""
    table = rank.trace.operators
    at, thread = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    end = at + table["duration_ns"].to_numpy()
    until = sorts | (rank.workings.work.dense > 0)
    for one in np.unique(thread[outermost]).tolist():
        rows = np.flatnonzero(thread == one)
        rows = rows[np.argsort(at[rows], kind="stable")]
        readers, limits = rows[given[rows] & ~sorts[rows]], rows[until[rows]]
        for row in outermost[(thread[outermost] == one) & given[outermost]].tolist():
            place = int(np.searchsorted(at[limits], end[row]))
            last = at[limits[place]] if place < len(limits) else at[rows[-1]] + 1
            first, past = np.searchsorted(at[readers], (end[row], last))
            yield row, readers[first : min(past, first + _MOST_READERS)].tolist()


def _few_of(table: pl.DataFrame, shape: Shape, row: int, readers: list[int]) -> tuple[int, int] | None:
    """The places that one call sorts, and those that are read; ``None`` where more are read or it is not known."""
    size, axis = _sorted(*_told(table, row))
    if size != shape or shape[axis] < _LEAST_SORTED:
        return None
    read = 0
    for reader in readers:
        name, dims, concrete = _told(table, reader)
        if name in _VIEWS:
            continue
        if name == _INDEX and all_sizes(dims) == (shape,):  # the indices stand in a list, whose sizes are not recorded
            dims = _with_numbers(table, reader, dims)
        taken = _taken(name, dims, concrete, shape, axis)
        if taken is None:
            return None
        read = max(read, taken)
    return (shape[axis], read) if 0 < read <= _MOST_READ * shape[axis] else None


def _place_of_one(table: pl.DataFrame, shape: Shape, row: int, readers: list[int]) -> tuple[int, int] | None:
    """The places that one call sorts, where all that follows looks for one number's place in each row: its rank."""
    size, axis = _sorted(*_told(table, row))
    told = [one for one in (_told(table, reader) for reader in readers) if one[0] not in _VIEWS]
    if size != shape or shape[axis] < _LEAST_SORTED or not told or told[0][0] != _COMPARES:
        return None
    wanted = [one for one in all_sizes(told[0][1]) if one != shape]
    one_each = bool(wanted) and len(wanted[0]) == len(shape) and wanted[0][axis] == 1
    names = {name for name, _, _ in told[1:]}
    return (shape[axis], 1) if one_each and names & _FINDS and names <= _FINDS | _CASTS else None


def _with_numbers(table: pl.DataFrame, row: int, dims: str) -> str:
    """The sizes of an indexing's arguments, with that of the indices, which it converts itself."""
    inside = table.filter((table["parent"] == row) & (table["name"].cast(str) == "aten::reshape"))
    found = [first_size(one) for one in inside["input_dims"].cast(pl.String).to_list()]
    given: list[object] = parse_json(dims)
    return json.dumps([*given[:1], *found])


def _told(table: pl.DataFrame, row: int) -> tuple[str, str, str]:
    name, dims, concrete = table.select("name", "input_dims", "concrete_inputs")[row].cast(pl.String).row(0)
    return name, dims or "", concrete or ""


def _sorted(name: str, dims: str, concrete: str) -> tuple[Shape, int]:
    """The size of a sort's input, and its dimension; an empty size where that is unknown."""
    shape = first_size(dims)
    try:
        values = [] if name == "aten::msort" else parse_json(concrete)[1:]
        numbers = [int(value) for value in values if isinstance(value, str) and value.lstrip("-").isdecimal()]
    except (ValueError, TypeError):
        return (), 0
    axis = 0 if name == "aten::msort" else numbers[0] if numbers else -1
    return (shape, axis % len(shape)) if shape and -len(shape) <= axis < len(shape) else ((), 0)


def _taken(name: str, dims: str, concrete: str, shape: Shape, axis: int) -> int | None:
    """How many places of a sort an operator takes from either end of it, 0 for few elements from within something.

    ``None`` where it takes others, or all.
    """
    if name in _GATHERS:
        sizes = all_sizes(dims)
        few = [size for size in sizes if size != shape]
        return 0 if sizes[:1] == (shape,) and few and prod(few[-1]) <= _MOST_READ * prod(shape) else None
    if name != _SLICE or first_size(dims) != shape:
        return None
    try:
        values = parse_json(concrete)
        along = int(values[1]) % len(shape)
        limits = [int(values[n]) if values[n] else default for n, default in ((2, 0), (3, shape[along]), (4, 1))]
    except (ValueError, TypeError, IndexError):
        return None
    first, last, step = slice(*limits).indices(shape[along])
    if along != axis:
        return 0 if (first, last, step) == (0, shape[along], 1) else None
    at_an_end = first == 0 or last == shape[axis]
    return len(range(first, last, step)) if at_an_end else None
