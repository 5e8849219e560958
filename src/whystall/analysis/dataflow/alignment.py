"""Which operators of a recorded window are the calls of an execution trace that was made later, in other steps.

A step makes the same calls as the one before: the third product of some sizes in one is the third of these sizes in the
other. A kind of call that a step makes more or less often is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from whystall.analysis.dataflow.graph import Numbers
from whystall.json_text import NotJsonError, parse_json
from whystall.trace.model import Trace
from whystall.trace.readers.execution_trace import Node, Tensor

Kind = tuple[str, tuple[tuple[int, ...], ...]]
"""An operator, and the sizes of the tensors among its arguments."""

_LONGEST: Final = 1 << 16


def rows_of_calls(trace: Trace, step: list[Node], wanted: Iterable[int]) -> Numbers:
    """The rows of a trace's operators that are some calls of a step, in all steps of the trace.

    Args:
        trace: The recorded window.
        step: All calls of one step, in the order in which they began.
        wanted: The numbers of the calls to find.
    """
    sought = set(wanted)
    kind_of = {node.number: _kind_of(node) for node in step if node.schema}
    kinds = {kind_of[number] for number in sought if number in kind_of}
    names = {name for name, _ in kinds}
    calls: defaultdict[Kind, list[int]] = defaultdict(list)
    for number, kind in kind_of.items():
        if kind in kinds:
            calls[kind].append(number)
    rows = _rows_by_kind(trace, names)
    found = [
        row
        for (kind, _), recorded in rows.items()
        if kind in kinds and len(recorded) == len(calls[kind])
        for row, number in zip(recorded, calls[kind], strict=True)
        if number in sought
    ]
    return np.array(sorted(found), np.int64)


def _kind_of(node: Node) -> Kind:
    return node.name, tuple(one.shape for one in node.given if isinstance(one, Tensor) and one.shape)


def _rows_by_kind(trace: Trace, names: set[str]) -> dict[tuple[Kind, int], list[int]]:
    """The rows of the operators of some names by kind and step, in the order in which they began."""
    table = trace.operators
    begins = np.sort(trace.steps["ts_ns"].to_numpy())
    at = table["ts_ns"].to_numpy()
    step = np.searchsorted(begins, at, side="right") - 1
    chosen = np.flatnonzero(table["name"].cast(str).is_in(list(names)).to_numpy() & ((step >= 0) | (len(begins) == 0)))
    chosen = chosen[np.argsort(at[chosen], kind="stable")]
    known: dict[str | None, tuple[tuple[int, ...], ...]] = {}
    out: defaultdict[tuple[Kind, int], list[int]] = defaultdict(list)
    picked = table.select("name", "input_dims")[chosen]
    for row, name, dims in zip(chosen.tolist(), picked["name"].cast(str), picked["input_dims"].cast(str), strict=True):
        if dims not in known:
            known[dims] = _sizes(dims)
        out[(str(name), known[dims]), int(step[row])].append(row)
    return out


def _sizes(dims: str | None) -> tuple[tuple[int, ...], ...]:
    """The sizes of the tensors among recorded arguments; those of lists, and of single numbers, are left out."""
    if dims is None or len(dims) > _LONGEST:
        return ()
    try:
        listed = parse_json(dims.encode())
    except NotJsonError:
        return ()
    found = [one for one in listed if isinstance(one, list) and one] if isinstance(listed, list) else []
    return tuple(tuple(one) for one in found if all(isinstance(size, int) for size in one))
