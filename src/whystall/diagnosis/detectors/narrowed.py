"""Products with many rows of which few are read: logits of every position, where only the last one is needed.

A recording does not state which tensor an operator receives. Sizes identify it: an argument with the result's number of
elements, between the product and the next one like it, is that result. If anything reads all rows, there is no finding;
a loss that was seen to ignore most labels reads only the rows whose labels count. A result that no operator receives
may still be returned as it is; if its input is used afterwards, in a job that does not train, the answer comes from
that input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.replay.graph import Mask
from whystall.run_folder.observations import CountedLabels
from whystall.trace.columns import distinct, judged, matching
from whystall.trace.recorded_sizes import all_sizes, first_size

# Where the first matrix stands among the arguments.
_MATRIX_AT: Final = {"aten::mm": 0, "aten::addmm": 1}
# A head makes more of each row than it receives; the result of any other product may be a residual.
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
# Operators that compute each row from that row alone.
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
# Operators that make an answer of hidden states without another product.
_POOLS: Final = frozenset(
    {"aten::linalg_vector_norm", "aten::masked_fill", "aten::mean", "aten::mul", "aten::select", "aten::sum"}
)
_SELECT: Final = "aten::select"
_SLICE: Final = "aten::slice"
_INDEX_SELECT: Final = "aten::index_select"
_NARROWS: Final = frozenset({_SELECT, _SLICE, _INDEX_SELECT})
_SAYS: Final = ("name", "input_dims", "concrete_inputs")
"""Columns that show how a reader reads."""
_NONE: Final = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The remaining share of each operator's time without the rows that nothing reads.

    ``rows`` is the number of rows of the largest such product, ``read`` the share of them that anything reads, by the
    labels of a loss or by the readers' sizes.
    """

    left: NDArray[np.float64]
    rows: int
    read: float
    by_labels: bool


def narrowed_products(rank: RankCase, labels: Sequence[CountedLabels]) -> Narrowed | None:
    """A rank's products with few rows read; ``None`` where there are none, or sizes were not recorded.

    Args:
        rank: The rank.
        labels: The sizes of scores, and the shares of their rows that have a label which counts.
    """
    table = rank.trace.operators
    if table["input_dims"].null_count() == len(table) or "concrete_inputs" not in table.columns:
        return None
    forward = _forward(rank)
    heads = np.flatnonzero(matching(table["name"], _MATRIX_AT.__contains__) & forward)
    made = np.array(judged(table.select("name", "input_dims")[heads], _made), np.int64)
    left: NDArray[np.float64] = np.ones(len(table))
    found: list[tuple[int, float, bool]] = []
    counted = {(one.rows, one.rows * one.columns): one.share for one in labels}
    for elements in np.unique(made[made >= _LEAST_ELEMENTS])[::-1][:_MOST_SIZES].tolist():
        found += _of_size(rank, heads[made == elements], elements, forward, counted, left)
    return Narrowed(left, *max(found)) if found else None


def _forward(rank: RankCase) -> Mask:
    engine = matching(rank.trace.operators["name"], lambda name: name.startswith("autograd::engine"))
    forward: Mask = ~(rank.backward | engine | rank.workings.tree.below(engine))
    return forward


def _made(name: str, dims: str | None) -> int:
    try:
        at = _MATRIX_AT[name]
        (rows, inner), (_, columns) = parse_json(dims or "")[at : at + 2]
    except (ValueError, TypeError):
        return 0
    sizes = (rows, inner, columns)
    if not all(type(size) is int and 0 < size < 1 << 40 for size in sizes):
        return 0
    return int(rows * columns) if columns >= _WIDER * inner else 0


def _of_size(
    rank: RankCase,
    heads: NDArray[np.intp],
    elements: int,
    forward: Mask,
    counted: Mapping[tuple[int, int], float],
    left: NDArray[np.float64],
) -> list[tuple[int, float, bool]]:
    """The rows of each narrowed product with ``elements`` elements, and the share that is read.

    ``counted`` is that share by rows and elements, where labels determine it; the last value marks these. Notes in
    ``left`` the remaining share of these products, and of operators of the same size, forward and backward.
    """
    table = rank.trace.operators
    at, thread = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    unread = None if rank.trains or rank.backward.any() else _Unread(rank)
    given = _given(table["input_dims"], elements)
    given[heads] = False
    rows = np.flatnonzero(given)
    rows = rows[np.argsort(at[rows], kind="stable")]
    heads = heads[np.argsort(at[heads], kind="stable")]
    edges = np.append(np.searchsorted(at[rows], at[heads], side="right"), len(rows))
    reading = np.stack([table[column].to_physical().fill_null(_NONE).to_numpy()[rows] for column in _SAYS], axis=1)
    shares: dict[bytes, float | None] = {}  # steps read alike
    out = []
    for head, (first, last) in zip(heads.tolist(), pairwise(edges.tolist()), strict=True):
        until = rows[first:last]
        readers = until[forward[until]]
        made = _rows_of(table["input_dims"][head])
        read = by_labels = counted.get((made, elements))
        if read is None and (thread[readers] == thread[head]).all():
            alike = reading[first:last][forward[until]].tobytes()
            if alike not in shares:
                shares[alike] = _share_read(table[readers], elements)
            read = shares[alike]
            if read is None and unread is not None and unread.is_left(head, readers):
                read = 0.0
        if read is not None and read <= _MOST_READ:
            left[[head, *until.tolist()]] = read
            out.append((made, read, by_labels is not None))
    return out


class _Unread:
    """Finds, for a job that does not train, whether any operator receives a product's result."""

    def __init__(self, rank: RankCase) -> None:
        self._table = table = rank.trace.operators
        self._at = table["ts_ns"].to_numpy()
        self._ends = self._at + table["duration_ns"].to_numpy()
        self._views = matching(table["name"], _VIEWS.__contains__)
        pools = np.flatnonzero(matching(table["name"], _POOLS.__contains__))
        self._pools = pools[np.argsort(self._at[pools], kind="stable")]
        self._pools_at = self._at[self._pools]
        embeds = matching(table["name"], lambda name: name == "aten::embedding")
        self._begins = np.sort(self._at[(rank.workings.work.dense > 0) | embeds])
        self._given: dict[int, Mask] = {}

    def is_left(self, head: int, readers: NDArray[np.intp]) -> bool:
        """Whether no operator receives a product's result, while the product's input is used right after it.

        It goes by operators that make answers, and by the begin of the next products or embeddings. A product's own
        calls are left out.
        """
        ended = self._ends[head]
        if not self._views[readers[self._at[readers] >= ended]].all():
            return False
        place = int(np.searchsorted(self._begins, ended))
        first = int(np.searchsorted(self._pools_at, ended))
        last = int(np.searchsorted(self._pools_at, self._begins[place])) if place < len(self._begins) else None
        dims = self._table["input_dims"]
        source = next((prod(one) for one in all_sizes(dims[head]) if len(one) == _DIMENSIONS), 0)
        if source not in self._given:
            self._given[source] = _given(dims, source)
        return bool(self._given[source][self._pools[first:last]].any())


def _given(dims: pl.Series, elements: int) -> Mask:
    """The calls with an argument of ``elements`` elements."""
    told = [elements in map(prod, all_sizes(text)) for text in distinct(dims)]
    place = dims.to_physical().fill_null(len(told)).to_numpy()
    given: Mask = np.array([*told, False], np.bool_)[place]
    return given


def _rows_of(dims: str | None) -> int:
    """The rows that a product of two matrices makes."""
    return next((one[0] for one in all_sizes(dims) if len(one) == _DIMENSIONS), 0)


def _share_read(readers: pl.DataFrame, elements: int) -> float | None:
    """The share of a product that its readers, by time, take; ``None`` where any takes all of it, or it is unknown."""
    shares: dict[tuple[str, str | None, str | None], float] = {}
    columns = readers.select(*_SAYS).cast(pl.String)
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
        sizes, values = parse_json(dims or ""), parse_json(concrete or "")
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
