"""Operators whose results nothing reads: a percentile that is thrown away, the gradient of an unused input.

Every operator that a dispatch mode sees is a call that reads some storages and writes others. A call is alive if it
writes an older storage, if its result is kept, or is read by a call that is alive or by Python itself (numpy, tolist, a
pickle; `item` is an operator). A variable is kept until it is overwritten, so that a step is judged when the one after
it has ended. Storages are known by weak references, which keep torch from reusing one's address for another.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Any, Final

from whystall.capture.faults import is_the_jobs, suppress
from whystall.capture.heard_functions import hear
from whystall.capture.masks import MOST_READ, Rows, by_rows, joined_in, masks_of, read_of
from whystall.capture.parts import Part, Reading, Readings, read_in_part
from whystall.capture.tally import Place, Tally, place_of
from whystall.run_folder.observations import RepeatedWork

_MOST_CALLS: Final = 1 << 15
_DEEPEST: Final = 3
# A job that discards all its outputs is a benchmark.
_MOST_OF_SERVING: Final = 0.5
# Views by other names, and operators that change a tensor's view and not its content.
_VIEWS: Final = frozenset(
    {"aten::_unsafe_view", "aten::squeeze_", "aten::swapaxes_", "aten::t_", "aten::transpose_", "aten::unsqueeze_"}
)
# Ways in which Python, or a library without torch's operators, reads a tensor.
_READS: Final = (
    *("__array__", "__dlpack__", "__reduce_ex__", "_typed_storage", "data_ptr", "numpy", "storage", "tolist"),
    "untyped_storage",
)


@dataclass(slots=True)
class _Call:
    place: Place
    ns: int
    reads: list[int]
    writes: list[int]
    alive: bool
    shape: tuple[int, ...] | None
    """The shape of its result, where that is made row by row in a forward pass."""
    back: bool
    masks: dict[int, Rows]
    joins: int
    """Number of tensors whose rows are side by side in its result."""
    reading: Reading


@dataclass(slots=True)
class _Step:
    calls: list[_Call] = field(default_factory=list)
    held: dict[int, Any] = field(default_factory=dict)
    """Weak references to the storages that were made in it."""


class Unread:
    """Follows the results of the operators of some steps."""

    def __init__(self, torch: Any) -> None:
        self.tally = Tally()
        self.masked = Tally()
        self.partly = Tally()
        self.trains = False
        self._torch = torch
        self._storage_of: Callable[[Any], Any] = torch.Tensor.untyped_storage
        self._readings = Readings(torch)
        self._steps = [_Step(), _Step()]
        """The step that is judged at the end of the current one, and the current one."""
        self._durations = [0, 0]
        self.our_thread: int | None = None
        """The thread on which an examination reads tensors itself: that is no use of them."""
        self._read_outside: dict[int, set[Part | None]] = {}
        """The places that Python has read, by storage; ``None`` are all of one."""
        self._patched: dict[str, tuple[Any, Any]] = {}
        self._ends: list[Callable[[], None]] = []
        self._deaf = False
        self._pid = os.getpid()

    def begin(self) -> None:
        """Follows reads by Python."""
        for name in _READS:
            before = getattr(self._torch.Tensor, name, None)
            if isinstance(before, FunctionType):
                with suppress(OSError):
                    self._ends.append(hear(before, self._is_read, lambda _: None))
                    continue
            if before is not None:
                ours = self._reading(name, before)
                self._patched[name] = (self._torch.Tensor.__dict__.get(name), ours)
                setattr(self._torch.Tensor, name, ours)

    def close(self) -> None:
        """Stops following; a wrapper that other code has put over a method stays."""
        for name, (own, ours) in self._patched.items():
            if self._torch.Tensor.__dict__.get(name) is ours:
                if own is None:
                    delattr(self._torch.Tensor, name)
                else:
                    setattr(self._torch.Tensor, name, own)
        self._patched.clear()
        for end in self._ends:
            end()
        self._ends.clear()
        self._steps = [_Step(), _Step()]
        self._read_outside.clear()

    def told(self) -> RepeatedWork | None:
        """Results that nothing read; ``None`` for a job that serves and reads none of its answers."""
        self.tally.fresh = 1
        found = None if self._deaf else self.tally.told()
        if found is None or self.trains or found.again_ns <= _MOST_OF_SERVING * found.measured_ns:
            return found
        return None

    def told_masked(self) -> RepeatedWork | None:
        """Work on rows that a mask throws away."""
        self.masked.fresh = 1
        return None if self._deaf else self.masked.told()

    def told_partly(self) -> RepeatedWork | None:
        """Results made whole and read in part."""
        self.partly.fresh = 1
        return None if self._deaf else self.partly.told()

    def note(
        self,
        function: Any,
        given: tuple[Any, ...],
        named: Mapping[str, Any],
        output: object,
        ns: int,
        frame: FrameType,
        *,
        back: bool = False,
    ) -> None:
        """Records an operator's call, in a backward pass or not, of ``ns``."""
        self.trains |= back
        step = self._steps[-1]
        schema = function._schema  # noqa: SLF001 - as torch's own modes read it
        if self._deaf or schema.name in _VIEWS or (function.is_view and not self._copies(given, output)):
            return
        if len(step.calls) >= _MOST_CALLS:
            self._deaf = True
            return
        reads, _ = self._storages((*given, *named.values()))
        made, plain = self._storages((output,))
        known = self._steps[0].held, step.held
        alive = not plain or not made or not schema.name.startswith("aten::")
        alive |= "empty" in schema.name  # memory without a computation
        alive |= self._torch.Tag.dynamic_output_shape in function.tags  # its size is information
        alive |= "batch_norm" in schema.name and self._keeps_statistics(schema, given, named)
        for address, storage in made.items():
            if address in reads:
                alive |= not any(address in held for held in known)
            elif not any(address in held for held in known):
                step.held[address] = _weak(storage)
        tensor: Any = output[0] if isinstance(output, tuple) and output else output
        rowwise = not back and isinstance(tensor, self._torch.Tensor) and by_rows(self._torch, function, schema.name)
        shape = tuple(tensor.shape) if rowwise else None
        masks = {} if back else self._masks(schema.name, given)
        place, joins = place_of(schema.name, frame), joined_in(schema.name, given)
        everything = (*given, *named.values())
        reading = self._readings.of(function, schema.name, everything, output, back=back)
        step.calls.append(_Call(place, ns, list(reads), list(made), alive, shape, back, masks, joins, reading))

    def _copies(self, given: tuple[Any, ...], output: object) -> bool:
        """Whether a possible view is a copy.

        Within inference a mode sees ``contiguous``, ``reshape`` and ``to`` themselves, which copy where they must.
        """
        made, seen = self._storages((output,))[0], self._storages(given)[0]
        return not made.keys() <= seen.keys()

    def _keeps_statistics(self, schema: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
        """Whether a normalisation writes its running statistics, which most schemas do not state."""
        called = {**{argument.name: one for argument, one in zip(schema.arguments, given, strict=False)}, **named}
        kept = isinstance(called.get("running_mean"), self._torch.Tensor)
        return kept and bool(called.get("training", "update" in schema.name and "no_update" not in schema.name))

    def step_ended(self, duration_ns: int) -> None:
        """A step of such a length is over: the one before it can be judged."""
        if self._deaf:
            return
        before, now = self._steps
        if self._durations[0]:
            dead, masked, partly = self._judged(before, now)
            for call in dead:
                self.tally.again[call.place] += call.ns
                self.tally.calls += 1
            for tally, lost_of in ((self.masked, masked), (self.partly, partly)):
                for call, lost, goes_back in lost_of:
                    tally.again[call.place] += lost
                    tally.differentiated_ns += lost * goes_back
                    tally.calls += 1
            for tally in (self.tally, self.masked, self.partly):
                tally.step_ended(self._durations[0])
        self._read_outside = {address: self._read_outside[address] for address in now.held.keys() & self._read_outside}
        self._steps, self._durations = [now, _Step()], [duration_ns, 0]

    def _judged(
        self, before: _Step, now: _Step
    ) -> tuple[list[_Call], list[tuple[_Call, int, bool]], list[tuple[_Call, int, bool]]]:
        """The calls of a step that are not alive, now that the next one is over.

        And those with mostly masked rows, and those with partial reads: the lost part of their time, and whether
        gradients go back through them. (Autograd's kept tensors are made and read in parts as well; weights outlive a
        step, and may be read by the backward pass of another call.)
        """
        calls = [*before.calls, *now.calls]
        writers: defaultdict[int, list[int]] = defaultdict(list)
        for number, call in enumerate(calls):
            for address in call.writes:
                writers[address].append(number)
        kept = [
            address
            for step in (before, now)
            for address, reference in step.held.items()
            if address in self._read_outside or not reference.expired()
        ]
        alive = {number for number, call in enumerate(calls) if call.alive}
        alive.update(number for address in kept for number in writers[address])
        left = list(alive)
        while left:
            for address in calls[left.pop()].reads:
                fresh = [number for number in writers[address] if number not in alive]
                alive.update(fresh)
                left += fresh
        dead = [call for number, call in enumerate(before.calls) if number not in alive]
        read_back = {address for call in calls if call.back for address in call.reads} - set(kept)
        masked, partly = (
            [
                (one, round(one.ns * (1 - read)), not read_back.isdisjoint((*one.reads, *one.writes)))
                for one, read in ((calls[number], read) for number, read in sorted(found.items()))
            ]
            for found in (
                _masked(calls, len(before.calls), set(kept)),
                self._partly(calls, len(before.calls), (before, now)),
            )
        )
        return dead, masked, partly

    def _partly(self, calls: list[_Call], count: int, steps: tuple[_Step, _Step]) -> dict[int, float]:
        """The calls among the first ``count`` that are read in part, and the share."""
        held = {address for step in steps for address, reference in step.held.items() if not reference.expired()}
        whole = {address for address, read in self._read_outside.items() if None in read}
        outside = {
            address: frozenset(part for part in read if part is not None)
            for address, read in self._read_outside.items()
            if address not in whole
        }
        return read_in_part(calls, count, held | whole, outside)

    def _masks(self, name: str, given: tuple[Any, ...]) -> dict[int, Rows]:
        found = {}
        for tensor, rows in masks_of(self._torch, name, given):
            for address in self._storages((tensor,))[0]:
                found[address] = rows
        return found

    def _storages(self, values: Iterable[object], deep: int = _DEEPEST) -> tuple[dict[int, Any], bool]:
        """The storages of the tensors among some values, by address; and whether all tensors have one."""
        found: dict[int, Any] = {}
        plain = True
        for value in values:
            if isinstance(value, self._torch.Tensor):
                if value.layout is self._torch.strided and not value.is_nested:
                    storage = self._storage_of(value)
                    found[storage._cdata] = storage  # noqa: SLF001 - as torch.multiprocessing knows storages
                else:
                    plain = False
            elif isinstance(value, list | tuple) and deep:
                inner, all_plain = self._storages(value, deep - 1)
                found |= inner
                plain &= all_plain
        return found, plain

    def _is_read(self, tensor: Any) -> None:
        """Something outside of torch's operators reads a tensor."""
        try:
            # not our own reads, nor those of a loader's worker that was forked meanwhile and keeps the method
            if self.our_thread != threading.get_ident() and os.getpid() == self._pid:
                for address in self._storages((tensor,))[0]:
                    self._read_outside.setdefault(address, set()).add(self._readings.part_of(tensor))
        except Exception as error:
            if is_the_jobs(error):
                raise
            self._deaf = True

    def _reading(self, name: str, before: Callable[..., Any]) -> Callable[..., Any]:
        """A method of tensors that is not written in Python, for the steps of a look; pickled as the one it calls."""

        def reads(tensor: Any, *given: Any, **named: Any) -> Any:
            self._is_read(tensor)
            return before(tensor, *given, **named)

        reads.__module__, reads.__qualname__, reads.__name__ = "torch", f"Tensor.{name}", name
        reads.__doc__ = before.__doc__
        return reads


def _masked(calls: list[_Call], count: int, kept: set[int]) -> dict[int, float]:
    """The calls among the first ``count`` most of whose rows a mask throws away before any read.

    And the share of them that is read.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    found: dict[int, Rows] = {}

    def of_reader(reader: int, address: int) -> Rows | None:
        said = (calls[reader].masks.get(address), _of_each(found.get(reader), calls[reader].joins))
        return min((one for one in said if one is not None), key=lambda one: one.read, default=None)

    for number in range(len(calls) - 1, -1, -1):
        call = calls[number]
        if number < count and call.shape is not None and not call.alive and kept.isdisjoint(call.writes):
            rows = read_of(call.writes, call.shape, readers, of_reader)
            if rows is not None and rows.read <= MOST_READ:
                found[number] = rows
        for address in () if call.back else call.reads:
            readers[address].append(number)
    return {number: rows.read for number, rows in found.items()}


def _of_each(rows: Rows | None, joins: int) -> Rows | None:
    """The rows read on average of each of the tensors whose rows are side by side."""
    return rows if rows is None or joins == 1 else Rows(rows.number // joins, rows.read)


def _weak(storage: Any) -> Any:
    from torch.multiprocessing.reductions import StorageWeakRef  # noqa: PLC0415 - the user has imported torch

    return StorageWeakRef(storage)
