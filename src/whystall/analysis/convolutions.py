"""What old traces leave out of convolutions, found elsewhere in the same trace.

Before PyTorch 1.12 the profiler recorded no numbers beside shapes: no stride, no padding, no sizes. A convolution's
result has the shape of the gradient that its backward pass is given, and the sizes that the two backward operators
lack are those of tensors that the operator around them was given.
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import polars as pl

from whystall.analysis.backward import forward_operator_of
from whystall.analysis.operators import OperatorTree
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
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
    """Per operator the dimensions (JSON) that its own record lacks, else null: a result's, or those of its first size."""
    operators = trace.operators
    found: dict[int, str] = {}
    bare = operators["concrete_inputs"].is_null() & operators["input_dims"].is_not_null()
    convolution = bare.to_numpy() & matching(operators["name"], lambda name: "convolution" in name)
    rows = np.flatnonzero(convolution)
    if len(rows):
        parents = rows_of(operators["parent"])
        names = {int(row): str(operators["name"][int(row)]) for row in rows}
        for row, name in names.items():
            place = next((at for end, at in _SIZE_AT.items() if name.endswith(f"convolution_{end}")), None)
            if place is not None and int(parents[row]) in names:
                _keep(found, row, _dims(operators, int(parents[row]), place))
        results = _results(operators, forward_operator_of(trace, tree), names)
        threads = operators["thread"].to_numpy()
        sequences = operators["sequence"].fill_null(-1).to_numpy()
        for row, name in names.items():
            if name in _FORWARD:
                _keep(found, row, results.get((int(threads[row]), int(sequences[row]))))
    nothing = pl.Series("missing_sizes", [None], dtype=pl.String).new_from_index(0, len(operators))
    return nothing.scatter(list(found), list(found.values())) if found else nothing


def _results(
    operators: pl.DataFrame, forward_of: np.ndarray[tuple[int, ...], np.dtype[np.int32]], names: dict[int, str]
) -> dict[tuple[int, int], str | None]:
    """The shapes of results by thread and sequence number of the forward, from the gradients given to the backward."""
    threads = operators["thread"].to_numpy()
    sequences = operators["sequence"].fill_null(-1).to_numpy()
    found: dict[tuple[int, int], str | None] = {}
    for row, name in names.items():
        forward = int(forward_of[row])
        if name in _GRADIENT_AT and forward >= 0 and sequences[forward] >= 0:
            found[int(threads[forward]), int(sequences[forward])] = _dims(operators, row, _GRADIENT_AT[name])
    return found


def _dims(operators: pl.DataFrame, row: int, place: int) -> str | None:
    """The dimensions of one argument as JSON; ``None`` where there are none."""
    try:
        dims = json.loads(str(operators["input_dims"][row]))[place]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    sizes = isinstance(dims, list) and dims and all(type(one) is int and one >= 0 for one in dims)
    return json.dumps(dims) if sizes else None


def _keep(found: dict[int, str], row: int, text: str | None) -> None:
    if text is not None:
        found[row] = text
