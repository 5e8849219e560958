"""The source of many small operators, by their names, and so the way to make them fewer."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching

CallKind = Literal["recurrent", "passes", "elements"]
# An operator this frequent in a step belongs to a loop.
_LEAST: Final = 16
# Micro-batches of one step are fewer, or so large that their operators are.
_LEAST_PASSES: Final = 4
_CELLS: Final = frozenset({"aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell"})
_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})
_OF_ELEMENTS: Final = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::select"})
# Each is a call of Python's, and calls some others itself.
_MOSTLY_ELEMENTS: Final = 0.25
_FEW_PRODUCTS: Final = 0.02


def kind_of_calls(rank: RankCase, chosen: Mask, steps: int) -> CallKind | None:
    """The kind of chosen operators over ``steps`` steps: a recurrence, backward passes, single elements, or none."""
    names = rank.trace.operators["name"]

    def per_step(wanted: frozenset[str]) -> float:
        return np.count_nonzero(matching(names, wanted.__contains__) & chosen) / max(steps, 1)

    gates = min(per_step(frozenset({"aten::sigmoid"})), per_step(frozenset({"aten::tanh"})), per_step(_PRODUCTS))
    if max(per_step(_CELLS), gates) >= _LEAST:
        return "recurrent"
    if _backward_passes(rank, chosen) >= _LEAST_PASSES * max(steps, 1):
        return "passes"
    count = np.count_nonzero(chosen) / max(steps, 1)
    if per_step(_OF_ELEMENTS) >= max(_MOSTLY_ELEMENTS * count, _LEAST) and per_step(_PRODUCTS) <= _FEW_PRODUCTS * count:
        return "elements"
    return None


def _backward_passes(rank: RankCase, chosen: Mask) -> int:
    """How often autograd begins to go back: through a graph it goes from the last number down."""
    table = rank.trace.operators
    if "sequence" not in table.columns:
        return 0
    sequence: NDArray[np.int64] = table["sequence"].fill_null(-1).to_numpy()
    nodes = np.flatnonzero(matching(table["name"], lambda name: name.startswith("autograd::engine")) & (sequence >= 0))
    nodes = nodes[chosen[nodes]]
    number = sequence[nodes[np.argsort(table["ts_ns"].to_numpy()[nodes], kind="stable")]]
    return int(np.count_nonzero(np.diff(number, prepend=0) > 0))
