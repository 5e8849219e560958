"""Kernels of depthwise convolutions that are a column times a row: two convolutions, by each of them, do the same.

Sizes show it: a column times a row makes a matrix of the kernel's size, and nothing changes it on its way to the
convolution but a number, such as the sum that a blur's kernel is divided by. Small kernels, those of one channel, and
tensors with their channels last are as fast whole: with large ones, channels first, oneDNN is slow (`plain_layouts`).
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Final, Literal

import numpy as np

from whystall.cost import kind_of
from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.plain_layouts import LARGE_SIDE
from whystall.diagnosis.detectors.recorded_sizes import Shape, all_sizes
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.trace.columns import judged, matching

_CONVOLVES: Final = "aten::convolution"
_OF_VECTORS: Final = frozenset({"aten::outer", "aten::ger"})
_OUTER: Final = _OF_VECTORS | {"aten::mul", "aten::mm", "aten::matmul"}
_BY_A_NUMBER: Final = frozenset({"aten::div", "aten::div_", "aten::mul", "aten::mul_"})
_KEEPS: Final = frozenset({"aten::sum", "aten::to", "aten::contiguous", "aten::copy_", "aten::reshape", "aten::conv2d"})
_TOLD: Final = ("input_dims", "concrete_inputs", "input_strides")
_PLANE: Final = 2
# Where a convolution's arguments say whether it is transposed.
_TRANSPOSED: Final = 6
# What two convolutions took, over what the products say, for 15 to 31 numbers a side and 2 to 64 channels.
_TAKE: Final = (0.6, 1.0, 2.5)

_Role = tuple[Literal["made", "changed", "read"], Shape] | None


def separable_kernels(rank: RankCase) -> Wasted | None:
    """Such convolutions of a forward pass; ``None`` where there are none, or sizes are not recorded."""
    table = rank.trace.operators
    if any(column not in table.columns for column in _TOLD):
        return None
    tree = rank.workings.tree
    forward = ~(rank.backward | tree.below(rank.backward))
    convolves = matching(table["name"], _CONVOLVES.__eq__) & forward
    kernels = judged(table.select(*_TOLD)[np.flatnonzero(convolves)], _kernel)
    sizes = frozenset(filter(None, kernels))
    if not sizes:
        return None
    rows = np.flatnonzero(forward & ~tree.below(convolves))
    rows = rows[np.lexsort((table["ts_ns"].to_numpy()[rows], table["thread"].to_numpy()[rows]))]
    roles = judged(table.select("name", *_TOLD)[rows], partial(_role, sizes))
    found = _reading_products(rows.tolist(), roles)
    if not found:
        return None
    lasts = table["duration_ns"].to_numpy()[list(found)].astype(np.float64)
    left = float(np.average([sum(size) / prod(size) for size in found.values()], weights=np.maximum(lasts, 1)))
    tall, wide = max(found.values(), key=lambda size: (size[0] * size[1], size))
    least, expected, most = _TAKE
    marked = np.zeros(len(table), np.bool_)
    marked[list(found)] = True
    return Wasted(
        operators=marked | tree.below(marked),
        left=(left * least, left * expected, left * most),
        what="in convolutions with such kernels",
        facts=(
            evidence.count("numbers of the largest kernel", tall * wide),
            evidence.count("numbers of the column and the row that it is made of", tall + wide),
        ),
        method="replay: the same by a column and a row, one after the other",
        detail=f"a kernel of {tall} by {wide} is a column times a row",
        remedy="separated",
    )


def _reading_products(rows: list[int], roles: list[_Role]) -> dict[int, Shape]:
    """The convolutions whose kernel is a column times a row, and the kernel's size."""
    made: set[Shape] = set()
    found = {}
    for row, role in zip(rows, roles, strict=True):
        what, size = role or ("", ())
        if what == "made":
            made.add(size)
        elif what == "changed":
            made.discard(size)
        elif what == "read" and size in made:
            found[row] = size
    return found


def _role(sizes: frozenset[Shape], name: str, dims: str | None, concrete: str | None, strides: str | None) -> _Role:
    """What an operator does with matrices of such sizes; ``None`` where it does nothing that counts."""
    if name == _CONVOLVES:
        read = _kernel(dims, concrete, strides)
        return ("read", read) if read in sizes else None
    given = all_sizes(dims)
    made = _outer(name, given) if name in _OUTER else ()
    if made in sizes:
        return "made", made
    numbers = name in _BY_A_NUMBER and all(set(size) == {1} for size in given[1:])
    if numbers or name in _KEEPS or kind_of(name) in {"view", "memory"}:
        return None
    return next((("changed", size[-_PLANE:]) for size in given if size[-_PLANE:] in sizes), None)


def _outer(name: str, given: tuple[Shape, ...]) -> Shape:
    """The matrix that a column times a row gives, in whichever order they come; else nothing."""
    try:
        one, other = given
    except ValueError:
        return ()
    if name in _OF_VECTORS:
        return (*one, *other)
    column, row = (one, other) if one[-1] == 1 else (other, one)
    plain = len(column) >= _PLANE and column[-1] == 1 and {*column[:-_PLANE], *row[:-1]} <= {1}
    return (column[-_PLANE], row[-1]) if plain else ()


def _kernel(dims: str | None, concrete: str | None, strides: str | None) -> Shape:
    """The size in the plane of a large kernel for each of several channels that stand first; else nothing."""
    try:
        (*_, along), transposed = parse_json(strides or "")[0], parse_json(concrete or "")[_TRANSPOSED]
    except (ValueError, TypeError, IndexError, KeyError):
        return ()
    weight = all_sizes(dims)[1:2]
    if not weight or len(weight[0]) != 2 + _PLANE or along != 1 or transposed != "False":
        return ()
    channels, of_group, *kernel = weight[0]
    return tuple(kernel) if of_group == 1 < channels and min(kernel) >= LARGE_SIDE else ()
