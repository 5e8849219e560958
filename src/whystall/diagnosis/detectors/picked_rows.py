"""Rows that are computed alike and of which few are picked: rays of all pixels, where some are drawn.

A recording does not state which tensor an operator receives; sizes identify it. Before a row is picked by its index,
each operator on the same number of rows that computes each row from itself alone contributes to the source, back to the
first operator of the same size and another kind. If any operator other than a pick receives these rows before the next
ones are made, there is no finding: so a table that is only read is none, nor are rows under a mean. The number of rows
that an index tensor picks is not recorded: a later operator with rows of the same width shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.cost import kind_of
from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.trace.columns import distinct, matching
from whystall.trace.recorded_sizes import Shape, all_sizes, sizes_by_argument

_INDEX: Final = "aten::index"
_INDEX_SELECT: Final = "aten::index_select"
# With a larger share of picked rows little is saved.
_MOST_PICKED: Final = 1 / 4
_LEAST_ROWS: Final = 1 << 12
_MOST_SIZES: Final = 4
_MOST_BEFORE: Final = 64
_SOON: Final = 16
_MANY: Final = 8
"""An operator with fewer elements than rows by this factor does not work on the rows."""
# Calls with few rows cost their overhead: at most this many times the picked share is left.
_SLOWER: Final = 3.0
# Operators that copy each element, or make one for it.
_COPIES: Final = frozenset(
    {"aten::clone", "aten::contiguous", "aten::full_like", "aten::ones_like", "aten::to", "aten::zeros_like"}
)
_JOINS: Final = frozenset({"aten::cat", "aten::concat", "aten::stack"})
_SUMS: Final = frozenset({"aten::linalg_vector_norm", "aten::mean", "aten::norm", "aten::sum"})
_PRODUCTS: Final = frozenset({"aten::addmm", "aten::linear", "aten::matmul", "aten::mm"})
# Views by other names, and operators that write some rows.
_PASSED_OVER: Final = frozenset(
    {"aten::expand_as", "aten::flatten", "aten::index_put_", "aten::meshgrid", "aten::reshape"}
)
_WORKS, _READS, _PICKS, _NOTHING = range(4)


def picked_rows(rank: RankCase) -> Wasted | None:
    """Such operators of a forward pass; ``None`` where there are none, or sizes are not recorded."""
    table = rank.trace.operators
    if table["input_dims"].null_count() == len(table) or "concrete_inputs" not in table.columns:
        return None
    forward = table["parent"].is_null().to_numpy() & ~rank.backward
    picks = np.flatnonzero(matching(table["name"], {_INDEX, _INDEX_SELECT}.__contains__) & forward)
    counts = list(_picked(rank, picks, forward))
    sizes = sorted({one[0] for one in counts if one is not None})[-_MOST_SIZES:]
    found = np.zeros(len(table), np.bool_)
    told: list[tuple[int, int]] = []
    for rows in sizes:
        mine = {int(at): one[1] for at, one in zip(picks, counts, strict=True) if one is not None and one[0] == rows}
        for made, read in _made_for(rank, rows, mine, forward):
            found[made] = True
            told.append((rows, read))
    if not told:
        return None
    rows, read = max(told)
    share = read / rows
    return Wasted(
        operators=found | rank.workings.tree.below(found),
        left=(share, min(share * _SLOWER, 1.0), min(share * _SLOWER**2, 1.0)),
        what="making all rows",
        facts=(evidence.count("rows that are made", rows), evidence.count("of them are picked, at most", read)),
        method="replay: the same for the rows that are picked",
        detail=f"{rows:,} rows are made, at most {read:,} of them are picked",
        remedy="rows_first",
    )


def _picked(rank: RankCase, picks: NDArray[np.intp], forward: NDArray[np.bool_]) -> Iterator[tuple[int, int] | None]:
    """The number of rows and of picked rows at each pick, where these are few."""
    table = rank.trace.operators
    at, thread = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    rows = np.flatnonzero(forward)
    rows = rows[np.lexsort((at[rows], thread[rows]))]
    place = np.empty(len(table), np.intp)
    place[rows] = np.arange(len(rows))
    names, dims, concrete = (table[column] for column in ("name", "input_dims", "concrete_inputs"))
    soon = {one: all_sizes(one) for one in distinct(dims)}
    for pick in picks.tolist():
        given = sizes_by_argument(dims[pick])
        size = given[0][0] if given and len(given[0]) == 1 else ()
        read = 0
        if size and size[0] >= _LEAST_ROWS:
            if names[pick] == _INDEX:
                after = rows[place[pick] + 1 : place[pick] + 1 + _SOON]
                after = after[thread[after] == thread[pick]]
                read = next((n for row in after.tolist() for n in _as_wide(soon.get(dims[row], ()), size)), 0)
            else:
                read = _chosen(given, concrete[pick])
        yield (size[0], read) if 0 < read <= _MOST_PICKED * (size[0] if size else 0) else None


def _as_wide(sizes: tuple[Shape, ...], picked: Shape) -> Iterator[int]:
    """The rows of those sizes that have the width of the picked tensor, and another length."""
    for size in sizes:
        rows = prod(size[: len(size) - len(picked) + 1])
        if len(size) >= len(picked) and size[len(size) - len(picked) + 1 :] == picked[1:] and rows != picked[0]:
            yield rows


def _chosen(given: tuple[tuple[Shape, ...], ...], concrete: str | None) -> int:
    """How many rows an index_select takes; 0 where it takes something else."""
    try:
        of_rows = not int(parse_json(concrete or "")[1])
        (number,) = given[2]
    except (ValueError, TypeError, IndexError):
        return 0
    return prod(number) if of_rows else 0


def _made_for(
    rank: RankCase, rows: int, picks: dict[int, int], forward: NDArray[np.bool_]
) -> Iterator[tuple[list[int], int]]:
    """The operators that make the source, with the largest number of rows picked until they are made again.

    Rows that are picked from two tensors count twice: they may differ.
    """
    table = rank.trace.operators
    large = [any(prod(size) * _MANY >= rows for size in all_sizes(text)) for text in distinct(table["input_dims"])]
    place = table["input_dims"].to_physical().fill_null(len(large)).to_numpy()
    counts = forward & np.array([*large, False], np.bool_)[place]
    at, thread = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    for one in np.unique(thread[list(picks)]).tolist():
        order = np.flatnonzero(counts & (thread == one))
        order = order[np.argsort(at[order], kind="stable")]
        names = table["name"].cast(str)[order].to_list()
        said = list(table.select("input_dims", "concrete_inputs")[order].cast(pl.String).iter_rows())
        kinds = [
            _PICKS if row in picks else _kind(name, rows, *each)
            for row, name, each in zip(order.tolist(), names, said, strict=True)
        ]
        chosen = [place for place, kind in enumerate(kinds) if kind == _PICKS]
        made = [(before, first) for first in chosen if (before := _run_before(kinds, first))]
        # The picks from the last source are unknown: the recording may have ended before them.
        for (before, first), (until, _) in pairwise(made):
            between = range(first, until[0])
            if any(kinds[place] < _PICKS and _is_given(rows, said[place][0]) for place in between):
                continue
            taken = sum(picks[int(order[place])] for place in chosen if first <= place < until[0])
            if taken <= _MOST_PICKED * rows:
                yield order[before].tolist(), taken


def _run_before(kinds: list[int], place: int) -> list[int]:
    """The places of operators on rows right before a pick, views aside."""
    found: list[int] = []
    for before in range(place - 1, max(place - 1 - _MOST_BEFORE, -1), -1):
        if kinds[before] == _WORKS:
            found.append(before)
        elif kinds[before] != _NOTHING:
            break
    return found[::-1]


def _kind(name: str, rows: int, dims: str | None, concrete: str | None) -> int:
    """Whether a call makes each row from itself, reads what may be all of them, or leaves them alone."""
    kind = kind_of(name)
    if kind == "view" or name in _PASSED_OVER:
        return _NOTHING
    leading = max((_rows_first(size, rows) for size in all_sizes(dims)), default=0)
    if not leading:
        return _READS
    if kind == "elementwise" or name in _COPIES or (name in _PRODUCTS and leading == 1):
        return _WORKS
    return _WORKS if name in _JOINS | _SUMS and _keeps_rows(name, leading, dims, concrete) else _READS


def _rows_first(size: Shape, rows: int) -> int:
    """How many leading dimensions are the rows together; 0 where they are not."""
    seen = 1
    for leading, one in enumerate(size, 1):
        seen *= one
        if seen >= rows:
            return leading if seen == rows else 0
    return 0


def _keeps_rows(name: str, leading: int, dims: str | None, concrete: str | None) -> bool:
    """Whether a join or a sum goes over dimensions behind the rows."""
    try:
        values = parse_json(concrete or "")
        over = parse_json(values[1 if name in _JOINS or name in {"aten::mean", "aten::sum"} else 2])
        size = max(all_sizes(dims), key=len)
        among = len(size) + (name == "aten::stack")
        axes = [axis % among for axis in (over if isinstance(over, list) else [over])]
    except (ValueError, TypeError, IndexError):
        return False
    return bool(axes) and min(axes) >= leading


def _is_given(rows: int, dims: str | None) -> bool:
    """Whether a call receives ``rows`` rows."""
    return any(_rows_first(size, rows) for size in all_sizes(dims))
