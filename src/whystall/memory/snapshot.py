"""A memory snapshot as columns: the events of each device's allocator, its memory at the end, and the lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["HOST", "MISSING", "Action", "Annotation", "Blocks", "DeviceRecord", "Events", "Frame", "Frames", "Segments",
           "Snapshot", "State"]  # fmt: skip

MISSING: Final = -(1 << 63)
"""A number that a snapshot does not hold."""
HOST: Final = -1
"""The device of the allocator of pinned host memory."""

Integers = NDArray[np.signedinteger[Any]]


class Action(IntEnum):
    """Kind of an allocator event; the numbers are those of the native reader."""

    UNKNOWN = -1
    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    ANNOTATE = 9


class State(IntEnum):
    """State of a block; the numbers are those of the native reader."""

    UNKNOWN = -1
    ACTIVE = 0
    AWAITING_FREE = 1
    INACTIVE = 3


class Frame(NamedTuple):
    """A call on a stack. ``origin`` is where the line stood before torch.compile, as a traceback's text."""

    name: str
    file: str
    line: int | None
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class Frames:
    """Distinct frames, and distinct stacks of them, the innermost call first."""

    frames: tuple[Frame, ...]
    stack_frames: NDArray[np.uint32]
    stack_ends: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.stack_ends)

    def stack(self, number: int) -> tuple[Frame, ...]:
        """The calls of a stack; none for -1."""
        if number < 0:
            return ()
        begin = int(self.stack_ends[number - 1]) if number else 0
        return tuple(self.frames[int(at)] for at in self.stack_frames[begin : int(self.stack_ends[number])])


@dataclass(frozen=True, slots=True)
class Events:
    """Events of an allocator, in order. ``time_us`` is `None` where no event has a time; texts and stacks are -1."""

    action: NDArray[np.int8]
    address: Integers
    size: Integers
    stream: Integers
    time_us: Integers | None
    stack: Integers
    context: Integers
    metadata: Integers

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True)
class Segments:
    """Memory that the allocator had from the device when the snapshot was made."""

    address: Integers
    total: Integers
    is_large: NDArray[np.bool_]
    is_expandable: NDArray[np.bool_]
    pool: Integers

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The parts of the segments; ``segment`` is a row of theirs, ``requested`` is 0 in a free block."""

    segment: Integers
    address: Integers
    size: Integers
    requested: Integers
    state: Integers
    stack: Integers

    def __len__(self) -> int:
        return len(self.address)


class Annotation(NamedTuple):
    """A span that the program has named; open at an end that was not recorded."""

    name: str
    start_us: int
    end_us: int | None


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One allocator: a device's, or that of pinned host memory (`HOST`)."""

    device: int
    events: Events
    segments: Segments
    blocks: Blocks
    annotations: tuple[Annotation, ...]

    def since_start_ns(self, row: int) -> int | None:
        """The time of an event since the first one; `None` where events have no times."""
        time = self.events.time_us
        return None if time is None or row < 0 else (int(time[row]) - int(time[0])) * 1000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of a file. ``settings`` are the allocator's as the file holds them, empty where it holds none."""

    name: str
    devices: tuple[DeviceRecord, ...]
    frames: Frames
    texts: tuple[str, ...]
    settings: Mapping[str, Any]
    warnings: tuple[str, ...]
