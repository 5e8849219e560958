"""Layers that work on rows after these were repeated, or before they are averaged, where few rows would do.

A linear layer gives the same for the same row, so that picking rows by an index (messages along the edges of a graph),
or upsampling a picture, may as well come after it; and the mean of what it gives is what it gives for the mean. Of rows
that are put side by side (each node with each, both ends of an edge) it gives the sum of what its weight's columns give
for each of them.

No recording says which tensor a call was given, only of which size. So the layer comes right behind what repeats rows,
is given their size, and nothing after it is given what was repeated: rows picked for a sum with what a layer makes of
other rows are of the same size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.cost import kind_of
from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.going_back import backward_of
from whystall.diagnosis.detectors.recorded_sizes import Shape, all_sizes, sizes_by_argument
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.trace.columns import matching

_PICKS: Final = frozenset({"aten::index", "aten::index_select"})
_UPSAMPLES: Final = frozenset({"aten::upsample_bilinear2d", "aten::upsample_nearest2d", "aten::upsample_bicubic2d"})
_LINEAR: Final = frozenset({"aten::linear", "aten::addmm", "aten::mm", "aten::matmul"})
_JOINS: Final = frozenset({"aten::cat", "aten::concat"})
_REPEATS: Final = _PICKS | {"aten::expand", "aten::expand_as", "aten::repeat", "aten::repeat_interleave"}
_CONVOLVES: Final = frozenset({"aten::conv2d", "aten::convolution"})
_PASSES_ON: Final = frozenset({"aten::contiguous", "aten::clone", "aten::reshape", "aten::flatten", "aten::to"})
# So many rows are made of one.
_LEAST_TIMES: Final = 2.0
_LEAST_ROWS: Final = 256
_PICTURES: Final = 4
_MATRIX: Final = 2
# What was repeated is used soon, if not by the layer.
_NEAR: Final = 12
# Fewer rows are less well computed: so much more than their share, at most.
_SLOWER: Final = 2.0
# Calls before rows are put side by side among which those are that repeated them.
_BEFORE: Final = 24
# Of a layer on such rows the most that stays, for it to be told.
_MOST_LEFT: Final = 0.6
# Memory for them that is not asked for anew in each step is saved besides.
_HALF: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Found:
    """An operator on too many rows, with the share of them that would do; and one whose rows become narrower by it."""

    row: int
    left: float
    rows: tuple[int, int]
    how: str
    elements: int
    """Of what was repeated, or what is averaged."""
    results: int
    """How many tensors of so many elements one operator may be given afterwards: what the layer gives may be one."""
    beside: int | None = None
    beside_left: float = 1.0
    remedy: str = "commuted"
    least: float = 1.0
    """Of what is left as much may be all that is."""


def spread_rows(rank: RankCase) -> Wasted | None:
    """Such layers of forward passes; ``None`` where there are none, or sizes are not recorded."""
    found = list(_found(rank))
    if not found:
        return None
    table, below = rank.trace.operators, rank.workings.tree.below
    lasts = table["duration_ns"].to_numpy()
    taken = kept = 0.0
    marked = np.zeros(len(table), np.bool_)
    for one in found:
        for row, left in ((one.row, one.left), (one.beside, one.beside_left)):
            if row is not None:
                marked[row] = True
                taken += float(lasts[row])
                kept += float(lasts[row]) * left
    marked |= below(marked)
    marked |= backward_of(rank, marked)
    left, largest = kept / max(taken, 1.0), max(found, key=lambda one: one.rows)
    many, few = largest.rows
    return Wasted(
        operators=marked,
        left=(left * largest.least, min(left * _SLOWER**0.5, 1.0), min(left * _SLOWER, 1.0)),
        what="in a layer on more rows than there are different ones, with its backward pass",
        facts=(evidence.count("rows that it works on", many), evidence.count("that would do", few)),
        method="replay: its rows before they are repeated, or after they are averaged",
        detail=f"a layer works on {many:,} rows {largest.how} {few:,}",
        remedy=largest.remedy,
    )


def _found(rank: RankCase) -> Iterator[_Found]:
    """Pairs of operators with nothing but views and copies between them, thread by thread."""
    table = rank.trace.operators
    if "input_dims" not in table.columns:
        return
    forward = ~(rank.backward | rank.workings.tree.below(rank.backward))
    asked = matching(table["name"], (_PICKS | _UPSAMPLES | _JOINS | _LINEAR | _CONVOLVES | {"aten::mean"}).__contains__)
    if not (asked & forward).any():
        return
    names = table["name"].cast(str).to_list()
    outer = _outermost(rank, forward, names)
    for place, (one, other) in enumerate(pairwise(outer)):
        if asked[one] and asked[other] and table["thread"][one] == table["thread"][other]:
            first, second = (sizes_by_argument(table["input_dims"][row]) for row in (one, other))
            found = _pair(rank, names, (one, first), (other, second))
            if found is not None and not _is_read_later(rank, outer[place + 2 : place + 2 + _NEAR], found):
                yield found


def _outermost(rank: RankCase, forward: NDArray[np.bool_], names: list[str]) -> list[int]:
    """The operators that no other one calls, but views and copies, thread by thread."""
    table = rank.trace.operators
    at, thread = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    ends = at + table["duration_ns"].to_numpy()
    out: list[int] = []
    for row in np.flatnonzero(forward)[np.lexsort((at[forward], thread[forward]))].tolist():
        called = out and thread[row] == thread[out[-1]] and at[row] < ends[out[-1]]
        if not called and names[row] not in _PASSES_ON and kind_of(names[row]) != "view":
            out.append(row)
    return out


def _is_read_later(rank: RankCase, rows: list[int], found: _Found) -> bool:
    """Whether something is given what was repeated beside what the layer makes of it, or may be."""
    dims = rank.trace.operators["input_dims"]
    given = ([prod(size) for size in all_sizes(dims[row])] for row in rows)
    return any(sizes.count(found.elements) > found.results for sizes in given)


def _pair(
    rank: RankCase,
    names: list[str],
    first: tuple[int, tuple[tuple[Shape, ...], ...]],
    second: tuple[int, tuple[tuple[Shape, ...], ...]],
) -> _Found | None:
    (one, had), (other, given) = first, second
    if not (had and had[0] and given and given[0]):
        return None
    if names[one] in _JOINS and names[other] in _LINEAR and _has_weight(given):
        return _side_by_side(rank, names, one, other, (had[0], given[0][0], _columns(given)))
    before, after = had[0][0], given[0][0]
    if names[one] in _PICKS and names[other] in _LINEAR and _has_weight(given):
        return _picked(other, before, after, _columns(given))
    if names[one] in _UPSAMPLES and names[other] in _CONVOLVES and len(given) > 1 and given[1]:
        return _upsampled(one, other, before, after, given[1][0])
    if names[one] in _LINEAR and names[other] == "aten::mean" and _has_weight(had):
        return _averaged(rank, one, other, before, after, _columns(had))
    return None


def _has_weight(given: tuple[tuple[Shape, ...], ...]) -> bool:
    """Whether a product is with one matrix for all rows."""
    return _columns(given) > 0


def _columns(given: tuple[tuple[Shape, ...], ...]) -> int:
    """How many columns a layer makes; 0 where it has no weight for all rows. A weight is turned around, or not."""
    rows = given[0][0][-1]
    for sizes in given[1:]:
        if len(sizes) == 1 and len(sizes[0]) == _MATRIX and rows in sizes[0]:
            return prod(sizes[0]) // max(rows, 1)
    return 0


def _picked(other: int, before: Shape, after: Shape, columns: int) -> _Found | None:
    few, many = prod(before[:-1]), prod(after[:-1])
    alike = len(before) > 1 and len(after) > 1 and before[-1] == after[-1]
    if not alike or many < _LEAST_ROWS or not 0 < few * _LEAST_TIMES <= many:
        return None
    return _Found(other, few / many, (many, few), "that are picked from", prod(after), int(columns == after[-1]))


def _side_by_side(
    rank: RankCase, names: list[str], one: int, other: int, sizes: tuple[tuple[Shape, ...], Shape, int]
) -> _Found | None:
    """A layer on rows that are made of several, of which some are fewer than those."""
    pieces, after, columns = sizes
    many, wide = prod(after[:-1]), after[-1]
    as_one = all(len(size) > 1 and prod(size[:-1]) == many for size in pieces)
    if len(pieces) < 2 or not as_one or sum(size[-1] for size in pieces) != wide or many < _LEAST_ROWS:
        return None
    table = rank.trace.operators
    before = [row for row in range(max(one - _BEFORE, 0), one) if names[row] in _REPEATS]
    made = [size for row in before if table["thread"][row] == table["thread"][one] and (size := _size_of(table, row))]
    left, few = 0.0, 0
    for size in pieces:
        source = next((each for each in made if _is_repeated(each, size)), None)
        if source is not None:
            made.remove(source)
            few = max(few, prod(source[:-1]))
        left += size[-1] / wide * (1.0 if source is None else prod(source[:-1]) / many)
    if not few or left > _MOST_LEFT:
        return None
    told = "that are put side by side of"
    # What a part of the layer gives for each of the rows is added, in place of putting the rows side by side.
    added = min(columns / wide, 1.0)
    return _Found(other, left, (many, few), told, many * wide, int(columns == wide), one, added, "side_by_side", _HALF)


def _size_of(table: pl.DataFrame, row: int) -> Shape | None:
    given = sizes_by_argument(table["input_dims"][row])
    return given[0][0] if given and given[0] else None


def _is_repeated(source: Shape, size: Shape) -> bool:
    """Whether rows may be those of a smaller tensor, each several times."""
    return len(source) > 1 and source[-1] == size[-1] and 0 < prod(source) * _LEAST_TIMES <= prod(size)


def _upsampled(one: int, other: int, before: Shape, after: Shape, weight: Shape) -> _Found | None:
    if not len(before) == len(after) == len(weight) == _PICTURES or before[:2] != after[:2] or weight[2:] != (1, 1):
        return None
    few, many = before[0] * prod(before[2:]), after[0] * prod(after[2:])
    if weight[1] != after[1] or weight[0] > after[1] or many < _LEAST_ROWS or not 0 < few * _LEAST_TIMES <= many:
        return None
    left = weight[0] / after[1]
    return _Found(other, few / many, (many, few), "that are upsampled from", prod(after), int(left == 1), one, left)


def _averaged(rank: RankCase, one: int, other: int, before: Shape, after: Shape, columns: int) -> _Found | None:
    """The mean over some dimension but the last of what a layer gave."""
    table = rank.trace.operators
    if "concrete_inputs" not in table.columns or len(after) < 3 or prod(before[:-1]) != prod(after[:-1]):
        return None
    if after[-1] != columns:
        return None
    try:
        dims = parse_json(str(parse_json(str(table["concrete_inputs"][other] or "[]"))[1]))
    except (ValueError, IndexError, TypeError):
        return None
    over = {dim % len(after) for dim in dims if isinstance(dim, int)} if isinstance(dims, list) else set()
    if not over or len(after) - 1 in over:
        return None
    many = prod(after[:-1])
    few = many // max(prod(after[dim] for dim in over), 1)
    if many < _LEAST_ROWS or not 0 < few * _LEAST_TIMES <= many:
        return None
    return _Found(one, few / many, (many, few), "of which the mean is taken, of", prod(after), 0)
