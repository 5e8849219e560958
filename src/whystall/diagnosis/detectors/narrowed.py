"""Products of which all rows are computed and few are read: logits of every position, where the last one is asked for.

Nobody records which tensor an operator is given. The size tells: what is given as many elements as the product made,
between it and the next one like it, is given what it made. Where anything reads all of them, nothing is said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.diagnosis.detectors.recorded_sizes import all_sizes, first_size
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import distinct, judged, matching

# Where the first matrix stands among the arguments.
_MATRIX_AT: Final = {"aten::mm": 0, "aten::addmm": 1}
# A head makes more of each row than it is given; what makes as much or less may be added to what it was made from.
_WIDER: Final = 2
_DIMENSIONS: Final = 2
_LEAST_ELEMENTS: Final = 1 << 16
_MOST_SIZES: Final = 8
# Most of the rows are read where this share is, and nothing is to be gained.
_MOST_READ: Final = 0.75
_VIEWS: Final = frozenset(
    {
        "aten::_reshape_alias",
        "aten::_unsafe_view",
        "aten::alias",
        "aten::as_strided",
        "aten::contiguous",
        "aten::detach",
        "aten::reshape",
        "aten::resolve_conj",
        "aten::resolve_neg",
        "aten::squeeze",
        "aten::unsqueeze",
        "aten::view",
    }
)
# What computes each row from that row alone.
_BY_ROW: Final = frozenset(
    {
        "aten::_to_copy",
        "aten::add",
        "aten::add_",
        "aten::clone",
        "aten::copy_",
        "aten::div",
        "aten::div_",
        "aten::mul",
        "aten::mul_",
        "aten::relu",
        "aten::sigmoid",
        "aten::sub",
        "aten::tanh",
        "aten::to",
    }
)
_SELECT: Final = "aten::select"
_SLICE: Final = "aten::slice"
_INDEX_SELECT: Final = "aten::index_select"
_NARROWS: Final = frozenset({_SELECT, _SLICE, _INDEX_SELECT})


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Products whose rows are mostly thrown away, and per operator the share of its time that is left without them."""

    products: NDArray[np.int64]
    left: NDArray[np.float64]
    made: int
    read: float
    """How many rows the largest of them makes, and the share of them that anything reads."""


def narrowed_products(rank: RankCase) -> Narrowed | None:
    """The products of a rank of which few rows are read; ``None`` where there are none, or sizes were not recorded."""
    table = rank.trace.operators
    if table.is_empty() or table["input_dims"].null_count() == len(table):
        return None
    heads = _heads(rank)
    left: NDArray[np.float64] = np.ones(len(table))
    found: list[_Head] = []
    for elements in sorted(set(heads.values()), reverse=True)[:_MOST_SIZES]:
        of_size = np.array([row for row, made in heads.items() if made == elements], np.int64)
        found += _of_size(rank, of_size, elements, left)
    if not found:
        return None
    largest = max(found, key=lambda one: one.rows)
    return Narrowed(np.array([one.row for one in found], np.int64), left, largest.rows, largest.read)


@dataclass(frozen=True, slots=True)
class _Head:
    """A product that is narrowed: its row in the table of operators, how many rows it makes, the share that is read."""

    row: int
    rows: int
    read: float


def _heads(rank: RankCase) -> dict[int, int]:
    """Products of the forward pass that make much more than they are given, and how many elements each makes."""
    table = rank.trace.operators
    rows = np.flatnonzero(matching(table["name"], _MATRIX_AT.__contains__) & _forward(rank))
    told = judged(table.select("name", "input_dims")[rows], _made)
    return {row: made for row, made in zip(rows.tolist(), told, strict=True) if made >= _LEAST_ELEMENTS}


def _forward(rank: RankCase) -> Mask:
    engine = matching(rank.trace.operators["name"], lambda name: name.startswith("autograd::engine"))
    forward: Mask = ~(rank.backward | engine | rank.workings.tree.below(engine))
    return forward


def _made(name: str, dims: str | None) -> int:
    try:
        at = _MATRIX_AT[name]
        (rows, inner), (_, columns) = json.loads(dims or "")[at : at + 2]
    except (ValueError, TypeError):
        return 0
    sizes = (rows, inner, columns)
    if not all(type(size) is int and 0 < size < 1 << 40 for size in sizes):
        return 0
    return int(rows * columns) if columns >= _WIDER * inner else 0


def _of_size(rank: RankCase, heads: NDArray[np.int64], elements: int, left: NDArray[np.float64]) -> list[_Head]:
    """Which of the products that make so many elements are narrowed.

    Notes in ``left`` what stays of them, and of what works on as many elements, forward and backward.
    """
    table = rank.trace.operators
    at, thread = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    given = _given(table["input_dims"], elements)
    forward = given & _forward(rank)
    forward[heads] = False
    heads = heads[np.argsort(at[heads], kind="stable")]
    ends = np.append(at[heads][1:], np.iinfo(np.int64).max)
    out = []
    for head, end in zip(heads.tolist(), ends.tolist(), strict=True):
        until = given & (at > at[head]) & (at < end)
        readers = np.flatnonzero(until & forward)
        read = _share_read(table[readers[np.argsort(at[readers], kind="stable")]], elements)
        if read is None or read > _MOST_READ or (thread[readers] != thread[head]).any():
            continue
        left[head] = read
        left[until] = np.minimum(left[until], read)
        out.append(_Head(head, _rows_of(table["input_dims"][head]), read))
    return out


def _given(dims: pl.Series, elements: int) -> Mask:
    """Which calls are given a tensor of so many elements."""
    told = [elements in map(prod, all_sizes(text)) for text in distinct(dims)]
    place = dims.to_physical().fill_null(len(told)).to_numpy()
    given: Mask = np.array([*told, False], np.bool_)[place]
    return given


def _rows_of(dims: str | None) -> int:
    """The rows that a product of two matrices makes."""
    return next((one[0] for one in all_sizes(dims) if len(one) == _DIMENSIONS), 0)


def _share_read(readers: pl.DataFrame, elements: int) -> float | None:
    """The share of a product that its readers, by time, take; ``None`` where any takes all of it, or it is unknown."""
    if "concrete_inputs" not in readers.columns:
        return None
    shares: dict[tuple[str, str | None, str | None], float] = {}
    columns = readers.select("name", "input_dims", "concrete_inputs").cast(pl.String)
    for name, dims, concrete in columns.iter_rows():
        if name in _VIEWS or (name in _BY_ROW and not shares):
            continue
        taken = _taken(name, dims, concrete) if name in _NARROWS else None
        if taken is None or prod(first_size(dims)) != elements:
            return None
        if taken < 1:
            shares[name, dims, concrete] = taken
    return min(sum(shares.values()), 1.0) if shares else None


def _taken(name: str, dims: str | None, concrete: str | None) -> float | None:
    """The share of a tensor's elements that a narrowing takes, not of its last dimension; ``None``: unknown."""
    try:
        sizes, values = json.loads(dims or ""), json.loads(concrete or "")
        shape = sizes[0]
        axis = int(values[1]) % len(shape)
        size = shape[axis]
        if axis == len(shape) - 1 and name != _SLICE:
            return None
        if name == _SELECT:
            return 1 / float(size)
        if name == _INDEX_SELECT:
            return min(float(sizes[2][0]) / float(size), 1.0)
        first, last, step = (int(values[n]) if values[n] else default for n, default in ((2, 0), (3, size), (4, 1)))
    except (ValueError, TypeError, IndexError, ZeroDivisionError):
        return None
    first, last, step = slice(first, last, step).indices(size)
    taken = len(range(first, last, step)) / size
    return float(taken) if taken == 1 or axis < len(shape) - 1 else None
