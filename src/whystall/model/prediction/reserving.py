"""Memory that torch's caching allocator would reserve for a predicted step: simulated from the step's allocations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from whystall.memory.allocator import Allocation, Free, simulate
from whystall.memory.allocator_settings import DEFAULT, AllocatorSettings
from whystall.model.prediction.events import Record


def reserved_bytes(record: Record, settings: AllocatorSettings = DEFAULT) -> int:
    """The most that is reserved during all steps of a record, as ``max_memory_reserved`` would count it."""
    return simulate(_calls(record), settings).peak_reserved_bytes


def holds(record: Record, settings: AllocatorSettings, room_bytes: int) -> bool:
    """Whether the steps run with ``room_bytes`` for torch, which frees cached segments when the device is full."""
    return simulate(_calls(record), replace(settings, device_bytes=room_bytes)).failed_at is None


def _calls(record: Record) -> Iterator[Allocation | Free]:
    """The record as calls of the allocator: a storage of several parts frees its latest part first."""
    parts: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    made = 0
    for event in record.events:
        open_parts = parts[event.number]
        if event.n_bytes > 0:
            made += 1
            open_parts.append((made, event.n_bytes))
            yield Allocation((event.number, made), event.n_bytes, event.stream)
            continue
        left = -event.n_bytes
        while left > 0 and open_parts:
            part, size = open_parts.pop()
            yield Free((event.number, part))
            left -= size
