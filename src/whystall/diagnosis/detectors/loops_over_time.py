"""Recurrent cells that a loop calls for one position of a sequence after the other (``nn.LSTMCell``, ``nn.GRUCell``).

The products of the inputs do not depend on the previous position, and each weight's gradient is one product over all
positions: a layer for the whole sequence (``nn.LSTM``) computes both at once. In a loop each position has products of
its own, and each weight's gradient is summed over the positions. Only operations on the hidden state must stay in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.backward import forward_operator_of
from whystall.diagnosis.detectors.outer_calls import outer_calls, places_among
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import Shape, all_sizes, sizes_by_argument

_CELLS: Final = frozenset({"aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell"})
"""Operators that torch's cells call (torch/nn/modules/rnn.py)."""
_PRODUCTS: Final = frozenset({"aten::linear", "aten::mm", "aten::addmm", "aten::matmul"})
_ARITHMETIC: Final = frozenset({"aten::mm", "aten::addmm"})
_ADDS: Final = frozenset({"aten::add", "aten::add_"})
_SUMS: Final = frozenset({"aten::sum"})
# Between two positions the loop only takes parts of the sequence and collects results.
_PARTS: Final = frozenset({"aten::select", "aten::slice", "aten::narrow", "aten::unbind", "aten::split", "aten::chunk"})
_BETWEEN: Final = (
    _CELLS
    | _PARTS
    | frozenset(
        f"aten::{name}"
        for name in (
            *("view", "reshape", "squeeze", "unsqueeze", "transpose", "t", "permute", "detach", "alias", "contiguous"),
            *("stack", "cat", "dropout", "native_dropout", "zeros", "zeros_like", "empty", "new_zeros", "as_strided"),
        )
    )
)
_LEAST_BEFORE: Final = 4
"""Parts may be taken all at once, this many calls before the first cell."""
_WEIGHTS_FROM: Final = 2
"""The place of a cell's first weight among its arguments: behind the input and the state."""


@dataclass(frozen=True, slots=True)
class LoopsOverTime:
    """Operators of such loops, forward and backward, as masks over the table of operators.

    ``joined`` are products and sums that one call does for all places, ``gone`` sums of gradients over places,
    ``inner`` all operators of the cells. ``cells`` and ``loops`` count calls of cells and loops over a sequence.
    """

    joined: Mask
    gone: Mask
    inner: Mask
    cells: int
    loops: int


def loops_over_time(rank: RankCase, *, fewest: int) -> LoopsOverTime | None:
    """The loops of at least ``fewest`` cells with the same weights; ``None`` where there are none."""
    table = rank.trace.operators
    cells = matching(table["name"], _CELLS.__contains__)
    calls = outer_calls(rank)
    chosen = np.flatnonzero(cells[calls]) if len(calls) else np.zeros(0, np.int64)
    if len(chosen) < fewest:
        return None
    given = dict(
        zip(chosen.tolist(), judged(table.select("input_dims")[calls[chosen]], sizes_by_argument), strict=True)
    )
    kept, loops = _in_loops(rank, calls, chosen, given, fewest)
    if not kept:
        return None
    weights = {tuple(sorted(size)) for at in kept for sizes in given[at][_WEIGHTS_FROM:] for size in sizes}
    inner = np.zeros(len(table), np.bool_)
    inner[calls[kept]] = True
    inner |= rank.workings.tree.below(inner)
    inputs = _products_of_inputs(rank, calls, kept, given)
    forward = forward_operator_of(rank.trace, rank.workings.tree)
    back = (forward >= 0) & inner[np.maximum(forward, 0)]
    made = _made(rank, back)
    whole = np.array([size in weights for size in made], np.bool_)
    adds, sums, products = (matching(table["name"], of.__contains__) for of in (_ADDS, _SUMS, _ARITHMETIC))
    of_inputs = (forward >= 0) & inputs[np.maximum(forward, 0)]
    if back.any() and int((back & adds & whole).sum()) < (len(kept) - loops) // 2:
        return None  # weights whose gradients are not added up belong to different networks
    joined = inputs | (back & products & (whole | of_inputs)) | (back & sums & whole)
    gone = back & adds & whole
    return LoopsOverTime(joined | rank.workings.tree.below(joined), gone, inner | back, len(kept), loops)


def _in_loops(
    rank: RankCase,
    calls: NDArray[np.intp],
    chosen: NDArray[np.int64],
    given: dict[int, tuple[tuple[Shape, ...], ...]],
    fewest: int,
) -> tuple[list[int], int]:
    """The places among the calls of cells in loops, and how many loops they are.

    A loop takes its inputs from a sequence, part by part or all at once before it.
    """
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()[calls]
    step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), at, side="right")
    others = np.append(0, np.cumsum(~matching(table["name"], _BETWEEN.__contains__)[calls]))
    parts = np.append(0, np.cumsum(matching(table["name"], _PARTS.__contains__)[calls]))
    runs: dict[tuple[tuple[Shape, ...], ...], list[int]] = {}
    done: list[list[int]] = []
    for place in chosen.tolist():
        run = runs.setdefault(given[place], [])
        if run and (step[run[-1]] != step[place] or others[place] > others[run[-1] + 1]):
            done.append(run)
            run = runs[given[place]] = []
        run.append(place)
    loops = [
        run
        for run in (*done, *runs.values())
        if len(run) >= fewest
        and (
            parts[run[-1]] - parts[run[0] + 1] >= len(run) // 2 or parts[run[0]] > parts[max(run[0] - _LEAST_BEFORE, 0)]
        )
    ]
    return sorted(place for run in loops for place in run), len(loops)


def _products_of_inputs(
    rank: RankCase, calls: NDArray[np.intp], kept: list[int], given: dict[int, tuple[tuple[Shape, ...], ...]]
) -> Mask:
    """The product of the input of each cell, and what it calls: the first one in it that is given the input's size."""
    table, tree = rank.trace.operators, rank.workings.tree
    place = places_among(rank, calls)
    direct = np.isin(tree.parent, calls[kept]) & matching(table["name"], _PRODUCTS.__contains__)
    rows = np.flatnonzero(direct)
    rows = rows[np.argsort(table["ts_ns"].to_numpy()[rows], kind="stable")]
    sizes = judged(table.select("input_dims")[rows], all_sizes)
    reads = [given[at][0][0] in size for at, size in zip(place[rows].tolist(), sizes, strict=True)]
    rows = rows[np.array(reads, np.bool_)]
    _, first = np.unique(place[rows], return_index=True)
    out = np.zeros(len(table), np.bool_)
    out[rows[first]] = True
    below: Mask = out | tree.below(out)
    return below


def _made(rank: RankCase, back: Mask) -> list[Shape]:
    """Per operator the sorted size of what it makes, for products, sums and additions of a backward pass."""
    table = rank.trace.operators
    out: list[Shape] = [()] * len(table)
    rows = np.flatnonzero(back)
    found = judged(table.select("name", "input_dims")[rows], _result)
    for row, size in zip(rows.tolist(), found, strict=True):
        out[row] = size
    return out


def _result(name: str, dims: str | None) -> Shape:
    given = [one[0] for one in sizes_by_argument(dims) if len(one) == 1]
    if name in _ARITHMETIC:
        pair = given[-2:]
        return tuple(sorted((pair[0][0], pair[1][-1]))) if len(pair) > 1 and min(map(len, pair)) > 1 else ()
    if name in _ADDS:
        return tuple(sorted(given[0])) if given else ()
    # A bias: the sum over rows.
    return (given[0][-1],) if name in _SUMS and given else ()
