"""Calls that compute what was computed before: common subexpressions of a step, and loop-invariant ones.

Value numbering: a call of the same operator with the same numbers on the same contents has the same results. A content
is known by the call that wrote it. Memory that no call of the trace wrote is the same each time it is read if it lies
on a device, where only calls write, or if the job holds it all along; else each read of it may find another content,
since a loader may have put another batch in the same place.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from whystall.analysis.dataflow.chosen_calls import ChosenCall, ChosenCalls
from whystall.analysis.dataflow.recorded import tensors_in
from whystall.trace.readers.execution_trace import Tensor, Value

_HOST: Final = "cpu"


@dataclass(frozen=True, slots=True)
class ComputedAgain:
    """A call whose results were there before.

    Args:
        call: Its place among the calls.
        first: The place of the call that had them.
        within_step: Whether both are in one step; else the call is loop-invariant.
    """

    call: int
    first: int
    within_step: bool


def computed_again(chosen: ChosenCalls) -> list[ComputedAgain]:
    """The calls, views and memory without content left out, that a step could do without.

    A call of an earlier step counts only if autograd does not go back through this one, whose graph is freed with its
    step, and if the step has some new input: else the job measures a model on one batch.
    """
    numbering = _Numbering(chosen.held)
    found: dict[int, ComputedAgain] = {}
    seen: dict[Hashable, tuple[int, int]] = {}
    for place, call in enumerate(chosen.calls):
        key = numbering.add(call)
        if key is None:
            continue
        first, step = seen.setdefault(key, (place, call.step))
        if first == place:
            continue
        if step == call.step or not call.learned:
            found[place] = ComputedAgain(place, first, step == call.step)
        if step != call.step:
            seen[key] = (place, call.step)
    kept = _not_changed_by_others(chosen, found)
    return [
        one
        for one in kept
        if (one.within_step or chosen.calls[one.call].step in numbering.with_news)
        and not chosen.calls[one.call].backward
        and not chosen.calls[one.call].blank
        and (chosen.calls[one.call].made or chosen.calls[one.call].written)
    ]


@dataclass(slots=True)
class _Numbering:
    """The contents of storages after the calls so far."""

    held: frozenset[int]
    with_news: set[int] = field(default_factory=set)
    """The steps with an input that is there for the first time: read from the host's memory, or drawn."""
    _content: dict[int, int] = field(default_factory=dict)
    _blank: set[int] = field(default_factory=set)
    _foreign: set[int] = field(default_factory=set)
    """Memory of the host that others than operators may write."""
    _shows: dict[int, int] = field(default_factory=dict)
    """Per object of torch's the storage of the latest result that it was."""
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _fresh: int = 0

    def add(self, call: ChosenCall) -> Hashable | None:
        """Follows a call, and returns what it computes; ``None`` where that is something new in any case."""
        given = list(tensors_in(call.node.given))
        if call.opaque or call.random or call.outside:
            drawn = call.random and all(one.storage in self._blank for one in given)
            if drawn or (call.outside and any(one.shape for one in tensors_in(call.node.returned))):
                self._is_news(call)
            self._write(call, given, None)
            return None
        key = (call.node.name, call.node.schema, tuple(self._read(one, call) for one in call.node.given))
        self._write(call, given, key)
        return key

    def _is_news(self, call: ChosenCall) -> None:
        if not call.backward:
            self.with_news.add(call.step)

    def _read(self, value: Value, call: ChosenCall) -> Hashable:
        if isinstance(value, list):
            return tuple(self._read(one, call) for one in value)
        if not isinstance(value, Tensor):
            return type(value), value
        where = (value.offset, value.shape, value.strides, value.dtype, value.device)
        return self._content_of(value, call), where

    def _content_of(self, tensor: Tensor, call: ChosenCall) -> int:
        storage = tensor.storage
        if storage in self._blank and storage not in call.writes and not call.shows_only:
            # Read as it is: no operator filled it.
            self._blank.discard(storage)
            self._content[storage] = self._new()
        if tensor.device == _HOST and storage not in self.held and not self._is_result(tensor):
            if tensor.shape:
                self._is_news(call)
            return self._new()
        if storage not in self._content:
            self._content[storage] = self._new()
        return self._content[storage]

    def _is_result(self, tensor: Tensor) -> bool:
        """Whether a tensor in the host's memory is a call's result that no one else could write since.

        A number in an expression (``2 * x``) is a tensor of no dimensions that no call makes, in any free memory.
        """
        known = self._shows.get(tensor.identity) == tensor.storage and tensor.storage in self._content
        return known and bool(tensor.shape) and tensor.storage not in self._foreign

    def _write(self, call: ChosenCall, given: list[Tensor], key: Hashable | None) -> None:
        written = [*call.written, *call.made]
        for place, storage in enumerate(written):
            self._content[storage] = self._new() if key is None else self._numbered((key, place))
            self._blank.discard(storage)
        made = call.made
        self._shows.update((one.identity, one.storage) for one in tensors_in(call.node.returned))
        self._foreign.difference_update(made)
        if call.blank:
            self._blank.update(made)
        if call.opaque or call.outside:
            for one in given:
                self._content[one.storage] = self._new()
                self._blank.discard(one.storage)
        if call.lent:
            self._foreign.update(one.storage for one in tensors_in(call.node.returned) if one.device == _HOST)

    def _numbered(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _new(self) -> int:
        self._fresh -= 1
        return self._fresh


def _not_changed_by_others(chosen: ChosenCalls, found: dict[int, ComputedAgain]) -> list[ComputedAgain]:
    """Those whose results no other call changes afterwards: a result that is changed needs memory of its own."""
    changed: dict[int, bool] = {}
    """Per storage whether a call that is none of them changes it before it is made again."""
    out = []
    for place in range(len(chosen.calls) - 1, -1, -1):
        call = chosen.calls[place]
        made, touched = set(call.made), {*call.made, *call.written}
        kept = place in found and not any(changed.get(storage) for storage in touched)
        if kept:
            out.append(found[place])
        given = {one.storage for one in tensors_in(call.node.given)} if call.opaque else set()
        for storage in touched | given:
            changed[storage] = storage not in made and not kept
    return out[::-1]
