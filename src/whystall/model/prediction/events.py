"""A run's allocations, as a list: the interface between the simulation of a run and the analysis of its memory.

A simulation of an allocator reads the same list: sizes in the order of their allocations and frees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """When something happened: phase, section of the phase (for models of repeated blocks), module."""

    phase: str
    section: str
    module: str


class Event(NamedTuple):
    """Bytes that were allocated (above 0) or freed (below) under a number that stands for one storage.

    A resized storage has several; ``stream`` marks streams other than the default one.
    """

    number: int
    n_bytes: int
    place: Place
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """All events of a run in their order."""

    events: tuple[Event, ...]

    def levels(self) -> Iterator[tuple[Event, int]]:
        """Each event with the bytes that are allocated after it."""
        level = 0
        for event in self.events:
            level += event.n_bytes
            yield event, level
