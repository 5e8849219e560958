"""Statistics of tensors that the host reads as numbers, and that nothing else uses: those of monitors and logs."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.host_states import INPUT_NAME
from whystall.analysis.intervals import within
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of

_READS: Final = "aten::item"
# Operators of `tolist()` in a recording of a CPU. Lists are read for many purposes: these operands are statistics.
_LISTED: Final = ("aten::resolve_conj", "aten::resolve_neg")
_HISTOGRAMS: Final = frozenset({"aten::histc", "aten::histogram", "aten::quantile", "aten::nanquantile"})
# Operators that make statistics. A choice (argmax, multinomial, topk) does not count: a program continues with it.
_OF_STATISTICS: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("item", "mean", "std", "var", "median", "nanmedian", "quantile", "nanquantile", "sum", "nansum", "norm"),
        *("linalg_vector_norm", "linalg_norm", "max", "min", "amax", "amin", "aminmax", "histc", "histogram"),
        *("bincount", "any", "all", "count_nonzero", "sort", "kthvalue", "_unique2", "abs", "sign", "sqrt", "pow"),
        *("isnan", "isinf", "isfinite", "isclose", "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or"),
        *("bitwise_not", "sub", "mul", "div", "add", "rsub", "log", "exp", "neg", "square", "clamp", "clamp_min"),
        *("detach", "flatten", "view", "reshape", "ravel", "to", "_to_copy", "clone", "contiguous", "select"),
        *("resolve_conj", "resolve_neg", "histogram"),
        *("slice", "cat", "stack", "squeeze", "unsqueeze", "t", "transpose", "permute", "expand", "numpy_T"),
    )
)
_MOST_BEFORE: Final = 40


def read_statistics(rank: RankCase) -> Mask:
    """The outermost operators outside of autograd that end in a number for the host, and lead to nothing else."""
    table = rank.trace.operators
    out = np.zeros(len(table), np.bool_)
    if table.is_empty():
        return out
    at, thread = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    outside = rows_of(table["parent"]) < 0
    # Operators that make a batch belong to the input.
    fetches = rank.intervals(rank.host_named(lambda name: bool(INPUT_NAME.search(name))))
    for begin, end, _ in (rank.optimizer_steps, fetches):
        outside &= ~within(at, begin, end)
    outermost = np.flatnonzero(outside)
    rows = outermost[np.lexsort((at[outermost], thread[outermost]))]
    may_be = (matching(table["name"], _OF_STATISTICS.__contains__) & ~_differentiated(rank))[rows]
    reads = matching(table["name"], lambda name: name == _READS)[rows] | _listed(
        table["name"].cast(str).to_numpy()[rows]
    )
    # Where the run of operators that may be of a statistic begins, for each of them.
    breaks = ~may_be | (np.diff(thread[rows], prepend=-1) != 0)
    begins = np.maximum.accumulate(np.where(breaks, np.arange(len(rows)), 0))
    for place in np.flatnonzero(reads & may_be).tolist():
        first = max(int(begins[place]) + int(not may_be[begins[place]]), place - _MOST_BEFORE)
        if first < place:
            out[rows[first : place + 1]] = True
    return out


def _listed(names: NDArray[np.object_]) -> Mask:
    """Which of some operators in order end in the list of a histogram."""
    out = np.zeros(len(names), np.bool_)
    first, second = (names == name for name in _LISTED)
    ends = np.flatnonzero(second[2:] & first[1:-1]) + 2
    out[ends] = np.isin(names[ends - 2], list(_HISTOGRAMS))
    return out


def _differentiated(rank: RankCase) -> Mask:
    """The forward operators that a backward pass goes through: the last ones with a number that it refers to.

    Others bear the number of the next one that autograd will differentiate.
    """
    table = rank.trace.operators
    number: NDArray[np.int64] = table["sequence"].fill_null(-1).to_numpy()
    forward = np.flatnonzero((number >= 0) & ~rank.backward)
    forward = forward[np.argsort(table["ts_ns"].to_numpy()[forward], kind="stable")]
    out = np.zeros(len(table), np.bool_)
    last = np.unique(number[forward][::-1], return_index=True)[1]
    chosen = forward[::-1][last]
    out[chosen] = np.isin(number[chosen], number[rank.backward])
    # An operator that others are made of is differentiated where one of these is.
    parent, above = rank.workings.tree.parent, np.flatnonzero(out)
    while len(above):
        above = parent[above].astype(np.intp)
        above = above[above >= 0]
        above = above[~out[above]]
        out[above] = True
    return out
