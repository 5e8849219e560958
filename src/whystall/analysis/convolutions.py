"""Recovers fields that old traces lack for convolutions, from elsewhere in the same trace.

Before PyTorch 1.12 the profiler recorded no numbers beside shapes: no stride, no padding, no sizes. A convolution's
result has the shape of the gradient that its backward pass receives, and the sizes that the two backward operators lack
are those of tensors that the operator around them received.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.backward import forward_operator_of
from whystall.analysis.operators import OperatorTree
from whystall.json_text import parse_json
from whystall.trace.columns import matching
from whystall.trace.model import Trace

_FORWARD: Final = ("aten::cudnn_convolution", "aten::miopen_convolution", "aten::mkldnn_convolution")
# The place of the gradient among the arguments of the operator that computes a convolution's backward pass.
_GRADIENT_AT: Final = {
    "aten::cudnn_convolution_backward": 1,
    "aten::miopen_convolution_backward": 1,
    "aten::mkldnn_convolution_backward": 1,
    "aten::convolution_backward": 0,
}
# The place, among the arguments of the operator around it, of the tensor whose size comes first.
_SIZE_AT: Final = {"backward_input": 0, "backward_weight": 2}


def missing_sizes(trace: Trace, tree: OperatorTree) -> pl.Series:
    """Per operator the dimensions (JSON) that its own record lacks, else null.

    A result's, or those of its first size.
    """
    operators = trace.operators
    found: dict[int, str] = {}
    bare = operators["concrete_inputs"].is_null() & operators["input_dims"].is_not_null()
    convolution = bare.to_numpy() & matching(operators["name"], lambda name: "convolution" in name)
    rows = np.flatnonzero(convolution)
    if len(rows):
        calls = _calls(operators, rows)
        for row, call in calls.items():
            place = next((at for end, at in _SIZE_AT.items() if call.name.endswith(f"convolution_{end}")), None)
            if place is not None and call.parent in calls:
                _keep(found, row, _dims(calls[call.parent].dims, place))
        results = _results(operators, calls, forward_operator_of(trace, tree)[rows])
        for row, call in calls.items():
            if call.name in _FORWARD:
                _keep(found, row, results.get((call.thread, call.sequence)))
    nothing = pl.Series("missing_sizes", [None], dtype=pl.String).new_from_index(0, len(operators))
    return nothing.scatter(list(found), list(found.values())) if found else nothing


@dataclass(frozen=True, slots=True)
class _Call:
    """The fields of a call that may be a convolution."""

    name: str
    dims: str
    parent: int
    thread: int
    sequence: int


def _calls(operators: pl.DataFrame, rows: NDArray[np.intp]) -> dict[int, _Call]:
    columns = operators[rows].select(
        pl.col("name").cast(pl.String),
        pl.col("input_dims").cast(pl.String),
        pl.col("parent").fill_null(-1),
        "thread",
        pl.col("sequence").fill_null(-1),
    )
    return {row: _Call(*values) for row, values in zip(rows.tolist(), columns.iter_rows(), strict=True)}


def _results(
    operators: pl.DataFrame, calls: dict[int, _Call], forward_of: NDArray[np.int32]
) -> dict[tuple[int, int], str | None]:
    """The shapes of results by thread and sequence number of the forward, from the gradients of the backward."""
    threads = operators["thread"].to_numpy()
    sequences = operators["sequence"].fill_null(-1).to_numpy()
    found: dict[tuple[int, int], str | None] = {}
    for call, forward in zip(calls.values(), forward_of.tolist(), strict=True):
        if call.name in _GRADIENT_AT and forward >= 0 and sequences[forward] >= 0:
            found[int(threads[forward]), int(sequences[forward])] = _dims(call.dims, _GRADIENT_AT[call.name])
    return found


@lru_cache(maxsize=4096)
def _dims(text: str, place: int) -> str | None:
    """The dimensions of one argument as JSON; ``None`` where there are none."""
    try:
        dims = parse_json(text)[place]
    except (ValueError, LookupError, TypeError):
        return None
    sizes = isinstance(dims, list) and dims and all(type(one) is int and one >= 0 for one in dims)
    return json.dumps(dims) if sizes else None


def _keep(found: dict[int, str], row: int, text: str | None) -> None:
    if text is not None:
        found[row] = text
