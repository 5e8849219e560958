"""Every allocation of a run on fake tensors: one dispatch mode that hears of storages as they come and go."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from whystall.model.plans import Action, plan_for
from whystall.model.prediction import engine, shapes
from whystall.model.prediction.events import Event, Place, Record
from whystall.model.prediction.values import Values

Temporary = Callable[[str, Sequence[Any], Mapping[str, Any], Any], int]
Listener = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]


class Tracker(TorchDispatchMode):
    """Records allocations and frees while it is entered, above a mode of fake tensors.

    A storage counts from the operator that made it (or from ``hold``) until its last tensor is gone. ``rounding`` is
    the allocator's granule; ``temporary`` returns a kernel's own allocations, which it frees before it returns.
    """

    def __init__(self, values: Values | None = None, *, rounding: int = 1, temporary: Temporary | None = None) -> None:
        super().__init__()
        self._rounding = rounding
        self._temporary = temporary
        self.values = values or Values()
        self._live: dict[int, tuple[int, int, weakref.ref[Any]]] = {}  # address of the storage → number, bytes
        self._events: list[Event] = []
        self._count = 0
        self._silent = False
        self.place = Place("start", "", "")
        self.refilled: set[int] = set()  # numbers of storages that were emptied or filled again in place
        self.listeners: list[Listener] = []

    @property
    def record(self) -> Record:
        """The events until now."""
        return Record(tuple(self._events))

    def hold(self, value: Any) -> None:
        """Counts the storages of all tensors in ``value``, those that are not known yet."""
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                for part in parts_of(leaf):
                    self._see(part)

    def numbers(self, value: Any) -> frozenset[int]:
        """The numbers of the storages of all tensors in ``value``."""
        found = set()
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                for part in parts_of(leaf):
                    known = self._live.get(part.untyped_storage()._cdata)  # noqa: SLF001 - the storage's identity
                    if known is not None:
                        found.add(known[0])
        return frozenset(found)

    def borrow(self, n_bytes: int) -> int:
        """Counts memory that no tensor shows, and returns its number."""
        self._count += 1
        self._note(self._count, self._rounded(n_bytes))
        return self._count

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Nothing that happens inside counts."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Everything that happens inside happens at ``place``."""
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(hasattr(one, "__tensor_flatten__") for one in types):
            return NotImplemented  # a wrapper (DTensor) splits the call, and its parts are counted on their own
        plan = plan_for(func)
        if plan.action is Action.DECOMPOSE:
            with self:
                result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        if plan.action is Action.REFUSE or self._silent:
            return func(*args, **(kwargs or {}))
        return self._run(func, plan.name, args, kwargs or {})

    def _run(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        answered, result = self.values.instead(name, args)
        if answered:
            return result
        instead = engine.in_place_of(name, args, kwargs)
        if instead is not None:
            return instead(*args)
        args, real = self.values.sized(func, name, args, kwargs)
        if real is None:
            result = shapes.result_of(name, args)
            result = func(*args, **kwargs) if result is None else result
            self.values.follow(func, name, args, kwargs, result)
        else:
            fakes = [
                torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=args[0].device) for one in real
            ]
            for fake, one in zip(fakes, real, strict=True):
                self.values.learn(fake, one)
            result = fakes[0] if len(fakes) == 1 else tuple(fakes)
        self._after(func, name, args, kwargs, result)
        return result

    def _after(self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        for leaf in (result,) if isinstance(result, Tensor) else tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        if self._temporary is not None and (n_bytes := self._temporary(name, args, kwargs, result)):
            number = self.borrow(n_bytes)
            self._note(number, -self._rounded(n_bytes))
        for listener in self.listeners:
            listener(func, args, kwargs, result)

    def _see(self, tensor: Tensor) -> None:
        if tensor.layout is not torch.strided:
            for inner in _inner(tensor):
                self._see(inner)
            return
        self._see_storage(tensor.untyped_storage())

    def _see_storage(self, storage: Any) -> int:
        address = storage._cdata  # noqa: SLF001 - the storage's identity
        known = self._live.get(address)
        n_bytes = self._rounded(storage.nbytes())
        if known is None:
            self._count += 1
            known = (self._count, 0, weakref.ref(storage, self._forget(address, self._count)))
        if known[1] != n_bytes or address not in self._live:
            self._live[address] = (known[0], n_bytes, known[2])
            self._note(known[0], n_bytes - known[1])
        return known[0]

    def resized(self, storage: Any) -> None:
        """Follows a storage that was made larger or smaller in place, by no operator."""
        self.refilled.add(self._see_storage(storage))

    def _forget(self, address: int, number: int) -> Callable[[Any], None]:
        def gone(_: Any) -> None:
            known = self._live.get(address)
            if known is not None and known[0] == number:
                del self._live[address]
                self._note(number, -known[1])

        return gone

    def _note(self, number: int, delta: int) -> None:
        if delta:
            self._events.append(Event(number, delta, self.place))

    def _rounded(self, n_bytes: int) -> int:
        return -(-n_bytes // self._rounding) * self._rounding


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The plain tensors of a tensor: itself, or those in a wrapper (DTensor)."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    inner = [getattr(tensor, name) for name in names]
    return [part for one in inner if isinstance(one, Tensor) for part in parts_of(one)]


def _inner(tensor: Tensor) -> list[Tensor]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]  # noqa: SLF001 - those of a tensor that is not coalesced
    return []
