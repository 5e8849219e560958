"""The interface of an engine. Items and results are bytes, so that nothing that travels can be more than data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec


class Work(msgspec.Struct, frozen=True):
    """A function from bytes to bytes at the top of a module (``module:function``), an item, and the memory it needs."""

    function: str
    item: bytes
    memory_bytes: int


class Done(msgspec.Struct, frozen=True):
    """The result for the item at ``place``, or in a sentence why there is none."""

    place: int
    result: bytes | None
    failure: str | None = None


class Engine(Protocol):
    """Maps work to results."""

    @property
    def name(self) -> str:
        """The engine's name on the command line."""

    def map(self, work: Sequence[Work]) -> Iterator[Done]:
        """A result for every item, in the order in which they end. An item whose process dies is tried again."""
