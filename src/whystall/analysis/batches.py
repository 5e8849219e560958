"""The input size of a step: it shows whether two recordings have batches of the same size.

Nothing in a trace is called a batch. But if a product of the same operator with the same weights has another number of
rows, it has more or less work; the shapes record that.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.analysis.work_results import GivenRows
from whystall.json_text import NotJsonError, parse_json
from whystall.trace.columns import codes, distinct
from whystall.trace.model import Trace

# Positions of each operator's input and weights. An embedding is left out: positions have the same number of rows for
# any batch.
_OPERANDS: Final = {
    "aten::linear": (0, 1),
    "aten::addmm": (1, 2),
    "aten::mm": (0, 1),
    "aten::conv1d": (0, 1),
    "aten::conv2d": (0, 1),
    "aten::conv3d": (0, 1),
    "aten::convolution": (0, 1),
}
_MOST: Final = 16
# Without a batch a convolution's input has a dimension less than its weights.
_CONVOLUTION: Final = "conv"


def given_rows(trace: Trace) -> list[GivenRows]:
    """The input rows of a step's largest products, if the number is the same in every call and step.

    Empty where shapes or steps were not recorded.
    """
    steps, table = trace.steps, trace.operators
    places = [code for code, name in enumerate(distinct(table["name"])) if name in _OPERANDS]
    if steps.is_empty() or not places:
        return []
    begin = steps["ts_ns"].to_numpy()
    end = begin + steps["duration_ns"].to_numpy()
    starts = table["ts_ns"].to_numpy()
    at = np.searchsorted(begin, starts, side="right") - 1
    within = (at >= 0) & (starts < end[at]) & np.isin(codes(table["name"]), places)
    calls = table.filter(within & table["input_dims"].is_not_null().to_numpy())
    seen: dict[tuple[str, tuple[int, ...]], dict[int, int]] = {}
    for name, dims, count in calls.group_by("name", "input_dims").len().iter_rows():
        found = _rows_and_weights(str(name), str(dims))
        if found is not None:
            rows, weights = found
            counted = seen.setdefault((str(name), weights), {})
            counted[rows] = counted.get(rows, 0) + int(count)
    out = [
        GivenRows(operator=name, weights=list(weights), rows=rows, calls=count // len(begin))
        for (name, weights), counted in seen.items()
        if len(counted) == 1
        for rows, count in counted.items()
        if count % len(begin) == 0
    ]
    return sorted(out, key=lambda row: (-row.rows * row.calls * int(np.prod(row.weights)), row.operator, row.weights))[
        :_MOST
    ]


def _rows_and_weights(name: str, dims: str) -> tuple[int, tuple[int, ...]] | None:
    """The number of a call's input rows, and the shape of its weights."""
    given, weighing = _OPERANDS[name]
    try:
        shapes = parse_json(dims, type=list[list[int] | int])
    except NotJsonError:  # lists of tensors, or no shape
        return None
    if len(shapes) <= max(given, weighing):
        return None
    rows, weights = shapes[given], shapes[weighing]
    if not isinstance(rows, list) or not isinstance(weights, list) or len(rows) < 2 or len(weights) < 2:
        return None
    if _CONVOLUTION in name and len(rows) != len(weights):
        return None
    return (rows[0], tuple(weights)) if min(*rows, *weights) > 0 else None
