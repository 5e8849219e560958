"""The values of a recording: the call that made each, the calls that read it, and its views.

A value is one state of a tensor. A call that writes in place reads one value and makes the next. Nodes are the calls
that count: operators with a known cost, views, and calls that contain no other one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.work import Call
from whystall.cost.shapes import is_view
from whystall.cost.spec import TensorSpec

Numbers = NDArray[np.int64]

NEAR: Final = 12
"""Largest distance between the calls that make and read a value, views among them."""

_COPIES: Final = frozenset({"aten::clone", "aten::contiguous", "aten::_to_copy"})
_COPY_INTO: Final = "aten::copy_"


@dataclass(frozen=True)
class Dataflow:
    """Nodes and values by number.

    Args:
        rows: Per node the row of its operator in the trace.
        call_of: Per node the place of its call in ``calls``.
        calls: The distinct calls.
        backward: Which nodes belong to a backward pass.
        made_by: Per value the node that made it, -1 where none of the recording did.
        specs: The distinct shapes and dtypes of values.
        spec_of: Per value the place of its own.
        read_by: Per read the node that reads, ascending; a node's reads are in the order of its arguments.
        read: Per read the value.
        confidence: How sure the links are: 1 where the recording names each tensor.
        blind: Ascending, the nodes before which the device was given work whose tensors are not recorded.
    """

    rows: Numbers
    call_of: Numbers
    calls: list[Call]
    backward: NDArray[np.bool_]
    made_by: Numbers
    specs: list[TensorSpec]
    spec_of: Numbers
    read_by: Numbers
    read: Numbers
    confidence: float
    blind: Numbers

    def call(self, node: int) -> Call:
        """The call of a node."""
        return self.calls[int(self.call_of[node])]

    def spec(self, value: int) -> TensorSpec:
        """The shape and dtype of a value."""
        spec: TensorSpec = self.specs[self.spec_of[value]]
        return spec

    def named(self, names: frozenset[str]) -> list[int]:
        """The nodes of forward passes whose operator has one of some names, in the order in which they ran."""
        wanted = np.array([call.name in names for call in self.calls], np.bool_)
        return np.flatnonzero(wanted[self.call_of] & ~self.backward).tolist() if len(wanted) else []

    def given(self, node: int) -> list[int]:
        """The values that a node reads, in the order of its arguments."""
        values: list[int] = self.read[self._first_read[node] : self._first_read[node + 1]].tolist()
        return values

    def made(self, node: int) -> list[int]:
        """The values that a node makes."""
        values: list[int] = self._by_maker[self._first_made[node] : self._first_made[node + 1]].tolist()
        return values

    def readers(self, value: int) -> list[int]:
        """The nodes that read a value, ascending."""
        first, last = np.searchsorted(self._read_sorted, (value, value + 1))
        return sorted(set(self.read_by[self._by_value[first:last]].tolist()))

    def maker(self, value: int) -> int:
        """The node that made a value's content, before views and copies; -1 where the recording has none."""
        return int(self.made_by[self.origin(value)])

    def origin(self, value: int) -> int:
        """The value that a value is a view or a copy of."""
        known, path = self._origins, []
        while value not in known:
            path.append(value)
            node = int(self.made_by[value])
            source = self._passed_on(node) if node >= 0 else None
            if source is None:
                known[value] = value
            else:
                value = source
        known.update(dict.fromkeys(path, known[value]))
        return known[value]

    def uses(self, value: int) -> list[int]:
        """The nodes of forward passes that work with a value, behind its views and copies, ascending."""
        if value not in self._users:
            self._users[value] = self._uses(value)
        return self._users[value]

    def _uses(self, value: int) -> list[int]:
        found: set[int] = set()
        todo = [value]
        while todo:
            one = todo.pop()
            for node in self.readers(one):
                if self._passed_on(node) == one:
                    todo.extend(self.made(node))
                elif not self.backward[node]:
                    found.add(node)
        return sorted(found)

    def read_alone_by(self, value: int, node: int) -> bool:
        """Whether a node alone works with a value, in forward passes, and no near call may have been given it."""
        return self.uses(value) == [node] and not self._doubtful(value, node) and not self.may_be_changed(value, node)

    def may_be_changed(self, value: int, node: int, by: frozenset[int] = frozenset()) -> bool:
        """Whether a call between a value's maker and ``node``, other than ``by``, may have received the value.

        A view without a recorded shape hides it: an operator on the same number of elements in between may have made
        another value of the same shape, which is then the one that ``node`` reads. The same is true of work
        whose tensors are not recorded, such as a compiled kernel.
        """
        maker = int(self.made_by[value])
        if self.confidence == 1 or maker < 0 or maker >= node:
            return False
        if np.searchsorted(self.blind, maker, side="right") < np.searchsorted(self.blind, node, side="right"):
            return True
        reads = slice(self._first_read[maker + 1], self._first_read[node])
        alike = self._elements[self.read[reads]] == self.spec(value).numel
        nodes = set(self.read_by[reads][alike].tolist()) - by - set(self.uses(value))
        return any(not self.backward[one] and self._passed_on(one) is None for one in nodes)

    def _doubtful(self, value: int, node: int) -> bool:
        """Whether a call right behind ``node`` receives several tensors of a value's shape: it may be one of them."""
        if self.confidence == 1:
            return False
        shape = self.spec(value).shape
        near = (after for after in range(node + 1, min(node + 1 + NEAR, len(self.rows))) if not self.backward[after])
        return any(sum(one.shape == shape for one in self.call(after).given) > 1 for after in near)

    def _passed_on(self, node: int) -> int | None:
        """The value that a node hands on as it is: of views, and of copies that change no dtype; else ``None``."""
        call = self.call(node)
        if call.name == _COPY_INTO:
            given = self.given(node)
            return given[1] if len(given) > 1 and self.spec(given[0]).shape == self.spec(given[1]).shape else None
        same = call.name in _COPIES and bool(call.returned) and call.returned[0].dtype == call.given[0].dtype  # type: ignore[index]
        if not same and not is_view(call.name):
            return None
        given = self.given(node)
        return given[0] if given else None

    @cached_property
    def _origins(self) -> dict[int, int]:
        """`origin` of the values that were asked for."""
        return {}

    @cached_property
    def _users(self) -> dict[int, list[int]]:
        """`uses` of the values that were asked for."""
        return {}

    @cached_property
    def _elements(self) -> Numbers:
        return np.array([spec.numel for spec in self.specs], np.int64)[self.spec_of]

    @cached_property
    def _first_read(self) -> Numbers:
        return np.searchsorted(self.read_by, np.arange(len(self.rows) + 1)).astype(np.int64)

    @cached_property
    def _by_value(self) -> Numbers:
        return np.argsort(self.read, kind="stable").astype(np.int64)

    @cached_property
    def _read_sorted(self) -> Numbers:
        return self.read[self._by_value]

    @cached_property
    def _by_maker(self) -> Numbers:
        return np.argsort(self.made_by, kind="stable").astype(np.int64)

    @cached_property
    def _first_made(self) -> Numbers:
        return np.searchsorted(self.made_by[self._by_maker], np.arange(len(self.rows) + 1)).astype(np.int64)
