"""A trace's memory: each allocator's peak, and its holders where they are known."""

from __future__ import annotations

from typing import Literal

import msgspec

from whystall.analysis.results import Result

MemoryKind = Literal[
    "activations", "gradients", "optimizer state", "temporaries", "allocated before the record", "unknown"
]


class HeldMemory(Result, frozen=True, kw_only=True):
    """The bytes that were held for one purpose at the peak."""

    kind: MemoryKind
    bytes: int
    count: int


class MemoryHolder(Result, frozen=True, kw_only=True):
    """Allocations at the peak that were made for one purpose in one place.

    ``module`` is a path of classes, so that repeated blocks are one; ``function`` the innermost of the user's own, or
    of a library's. Each is ``None`` where the trace does not record it.
    """

    kind: MemoryKind
    module: str | None
    function: str | None
    operator: str | None
    bytes: int
    count: int


class MemoryPeak(Result, frozen=True, kw_only=True):
    """Peaks of one allocator from its memory events; ``None`` where old traces carry no totals.

    ``held`` adds up to the peak of the allocated memory, at ``peak_ns``; ``holders`` are the largest allocations of the
    record.
    """

    rank: int
    device_type: str
    device: int
    events: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    allocated_start_bytes: int | None
    allocated_end_bytes: int | None
    curve: list[tuple[int, int]]
    peak_ns: int | None = None
    held: list[HeldMemory] = msgspec.field(default_factory=list)
    holders: list[MemoryHolder] = msgspec.field(default_factory=list)
    holders_omitted: int = 0
    holders_unknown_because: str | None = None
