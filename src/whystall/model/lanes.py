"""Calls that are counted without Python: one lane for each thread, where ``whystall.model.native`` was built.

A lane counts calls that Python described before, and goes back to Python wherever the place of a call may be another
one. It knows calls and places as numbers; their meaning is kept here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol


class Call(Protocol):
    """The interface of a call that a lane uses."""

    @property
    def is_product(self) -> bool:
        """Whether it is one product."""


class ModuleSlot(defaultdict[Any, int]):
    """The counts of one place: ``key`` identifies it, ``number`` is its short name."""

    __slots__ = ("key", "number")

    def __init__(self, key: Any, number: int) -> None:
        super().__init__(int)
        self.key, self.number = key, number


class ModuleSlots(dict[Any, ModuleSlot]):
    """A thread's places, each made on first use."""

    def __init__(self) -> None:
        super().__init__()
        self.by_number: list[ModuleSlot] = []

    def __missing__(self, key: Any) -> ModuleSlot:
        place = self[key] = ModuleSlot(key, len(self.by_number))
        self.by_number.append(place)
        return place


class Lane:
    """The counts of one thread. ``place_of`` gives the place of a call that runs now, ``failed`` receives errors."""

    def __init__(
        self,
        built: ModuleType,
        mode: object,
        places: ModuleSlots,
        place_of: Callable[[Any], ModuleSlot],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._native = built.Lane(mode)
        self._mode = mode  # the native side compares its identity, which must stay taken
        self._places, self._place_of, self._failed = places, place_of, failed
        self._calls: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._counted: defaultdict[Any, defaultdict[Any, int]] = defaultdict(lambda: defaultdict(int))
        self.set_place: Callable[[int, bool], None] = self._native.set_place
        self.made_nothing: Callable[[], None] = self._native.made_nothing
        self.made_passing: Callable[[], None] = self._native.made_passing
        self.rest: Callable[[], None] = self._native.rest
        self.enter_thread: Callable[[], None] = self._native.enter_thread

    def wake(self) -> None:
        """From now on calls are counted, until ``rest``."""
        self._native.wake(self._ask)

    def made_known(self, call: Call) -> None:
        """Says that the call which Python was handed last is ``call``, and that those like it may be counted here."""
        number = self._numbers.get(id(call))
        if number is None:
            number = self._numbers[id(call)] = len(self._calls)
            self._calls.append(call)
        self._native.made_known(number, call.is_product)

    def tables(self) -> Mapping[Any, Mapping[Any, int]]:
        """The counts until now: how often each call ran, by its place's key. One thread may read at a time."""
        for place, number, times in self._native.take():
            self._counted[self._places.by_number[place].key][self._calls[number]] += times
        return self._counted

    def _ask(self, number: int) -> int:
        try:
            return self._place_of(self._calls[number]).number
        except Exception as error:  # noqa: BLE001 - a failure of ours must not reach the user's job
            self._failed(self._calls[number].name, error)
            return -1
