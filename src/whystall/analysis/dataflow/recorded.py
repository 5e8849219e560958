"""The graph of values of an execution trace, which names each tensor: nothing in it is guessed.

A storage is a new value at each result that is no view, and after each write that an operator's schema marks
(``Tensor(a!)``): its number is a pointer, and memory that was freed returns under the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from whystall.analysis.dataflow.graph import Dataflow, Numbers
from whystall.analysis.work import Call
from whystall.cost import cost_of, kind_of
from whystall.cost.recorded import DTYPES, UNKNOWN_DTYPE
from whystall.cost.shapes import is_view
from whystall.cost.spec import Argument, TensorSpec
from whystall.trace.model import Trace
from whystall.trace.readers.execution_trace import ExecutionTrace, Node, Tensor, Value

_TAKEN_APART: Final = (None, "composite", "communication")


def as_recorded(execution: ExecutionTrace, row_of: Mapping[int, int] | None = None) -> Dataflow:
    """The graph of an execution trace.

    Args:
        execution: The trace.
        row_of: The rows of the same run's operators by "Record function id" (`rows_by_rf_id`): other calls are left
            out. Without it a node's row is its place in the trace.
    """
    state = _Graph()
    backward = within(execution.nodes, lambda node: node.backward or node.name.startswith("autograd::engine"))
    counting = within(execution.nodes, counts)
    parents = {node.parent for node in execution.nodes}
    for place, node in enumerate(execution.nodes):
        if counting[place] == INSIDE or not (counting[place] == ITSELF or _is_leaf(node, parents)):
            continue
        row = place if row_of is None else row_of.get(node.rf_id, -1)
        if row >= 0:
            state.add(node, row, backward=backward[place] != OUTSIDE)
    return state.built()


def rows_by_rf_id(trace: Trace) -> dict[int, int]:
    """The rows of a trace's operators by the number that an execution trace has for them."""
    if "record_function_id" not in trace.operators.columns:
        return {}
    numbers = trace.operators["record_function_id"].fill_null(-1).to_list()
    return {number: row for row, number in enumerate(numbers) if number > 0}


OUTSIDE, ITSELF, INSIDE = range(3)


def within(nodes: list[Node], test: Callable[[Node], bool]) -> list[int]:
    """Per node whether it passes a test, an ancestor passes it, or neither: parents come first."""
    found: dict[int, int] = {}
    out = []
    for node in nodes:
        around = found.get(node.parent, OUTSIDE)
        state = INSIDE if around != OUTSIDE else ITSELF if test(node) else OUTSIDE
        found[node.number] = state
        out.append(state)
    return out


def counts(node: Node) -> bool:
    """Whether a call is an operator with a cost, or a view."""
    return bool(node.schema) and (is_view(node.name) or kind_of(node.name) not in _TAKEN_APART)


def _is_leaf(node: Node, parents: set[int]) -> bool:
    return bool(node.schema) and node.number not in parents


@dataclass(slots=True)
class _Graph:
    """The state of the graph after the calls so far."""

    rows: list[int] = field(default_factory=list)
    call_of: list[int] = field(default_factory=list)
    backward: list[bool] = field(default_factory=list)
    calls: dict[object, Call] = field(default_factory=dict)
    places: dict[object, int] = field(default_factory=dict)
    made_by: list[int] = field(default_factory=list)
    spec_of: list[int] = field(default_factory=list)
    specs: dict[TensorSpec, int] = field(default_factory=dict)
    read_by: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    values: dict[tuple[int, int, int, TensorSpec], int] = field(default_factory=dict)
    version: dict[int, int] = field(default_factory=dict)
    maker: dict[int, int] = field(default_factory=dict)
    """Per storage the node that made its version."""

    def add(self, node: Node, row: int, *, backward: bool) -> None:
        """One more call."""
        number = len(self.rows)
        self.rows.append(row)
        self.backward.append(backward)
        arguments = tuple(_argument(one) for one in node.given)
        returned = tuple(_spec(one) for one in tensors_in(node.returned))
        key = (node.name, repr(arguments), returned)
        if key not in self.places:
            self.places[key] = len(self.places)
            self.calls[key] = Call(node.name, arguments, cost_of(node.name, arguments, outputs=returned), returned)
        self.call_of.append(self.places[key])
        given = list(tensors_in(node.given))
        for one in given:
            self.read_by.append(number)
            self.read.append(self._value(one))
        written = {one.storage for one in written_by(node)}
        for storage in written:
            self._renew(storage, number)
        shown = {one.storage for one in given}
        results = list(tensors_in(node.returned))
        for storage in {one.storage for one in results} - shown:
            self._renew(storage, number)
        for one in [*results, *(one for one in written_by(node) if one not in results)]:
            self._value(one, number)

    def _renew(self, storage: int, number: int) -> None:
        self.version[storage] = self.version.get(storage, 0) + 1
        self.maker[storage] = number

    def _value(self, tensor: Tensor, maker: int | None = None) -> int:
        """The value that a tensor shows now: a new one where it was not seen in this version."""
        spec = _spec(tensor)
        key = (tensor.storage, self.version.get(tensor.storage, 0), tensor.offset, spec)
        if key not in self.values:
            self.values[key] = len(self.made_by)
            self.made_by.append(self.maker.get(tensor.storage, -1) if maker is None else maker)
            self.spec_of.append(self.specs.setdefault(spec, len(self.specs)))
        return self.values[key]

    def built(self) -> Dataflow:
        """The graph."""
        return Dataflow(
            rows=_numbers(self.rows),
            call_of=_numbers(self.call_of),
            calls=list(self.calls.values()),
            backward=np.array(self.backward, np.bool_),
            made_by=_numbers(self.made_by),
            specs=list(self.specs),
            spec_of=_numbers(self.spec_of),
            read_by=_numbers(self.read_by),
            read=_numbers(self.read),
            confidence=1.0,
            blind=_numbers([]),
        )


def _numbers(values: list[int]) -> Numbers:
    return np.array(values, np.int64)


def tensors_in(values: Value | tuple[Value, ...]) -> Iterator[Tensor]:
    """The tensors among a call's arguments or results, those of lists in their order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for one in values:
            yield from tensors_in(one)


def written_by(node: Node) -> list[Tensor]:
    """The tensors among a call's arguments that it writes, by its schema."""
    return [one for part, value in declared(node) if "!" in part for one in tensors_in(value)]


def declared(node: Node) -> list[tuple[str, Value]]:
    """The arguments of a call as its schema declares them (``Tensor(a!) self``), with their values."""
    return list(zip(_declarations(node.schema), node.given, strict=False))


@lru_cache(4096)
def _declarations(schema: str) -> tuple[str, ...]:
    signature = schema.partition("(")[2].rpartition(" -> ")[0].removesuffix(")")
    return tuple(one for one in _split(signature) if one.strip() != "*")


def _split(signature: str) -> Iterator[str]:
    """The arguments of a signature: commas within brackets belong to one."""
    depth, begin = 0, 0
    for place, letter in enumerate(signature):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            yield signature[begin:place]
            begin = place + 1
    yield signature[begin:]


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.shape, DTYPES.get(tensor.dtype, UNKNOWN_DTYPE), tensor.strides)


def _argument(value: Value) -> Argument:
    if isinstance(value, Tensor):
        return _spec(value)
    return [_argument(one) for one in value] if isinstance(value, list) else value
