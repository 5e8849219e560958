"""Changes worth making for a snapshot, with the bytes that each would save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from whystall.memory.allocator import simulate
from whystall.memory.allocator_settings import MIB, AllocatorSettings
from whystall.memory.lifetimes import Lifetimes, Reserved
from whystall.memory.requests import MOST_SIMULATED, requests_of
from whystall.memory.results import Category, DeviceMemory, MemoryFinding
from whystall.memory.snapshot import HOST, DeviceRecord

__all__ = ["find"]

_LEAST: Final = 1 << 30  # bytes; smaller jobs run short of nothing
_WORTH: Final = 0.05  # of reserved or allocated memory
_CLOSE: Final = 0.05  # largest error of the simulation of the record
_MOST_OF_IT: Final = 0.4
_MOST_LINES: Final = 3


def find(
    record: DeviceRecord, alive: Lifetimes, reserved: Reserved | None, told: DeviceMemory, settings: AllocatorSettings
) -> tuple[MemoryFinding, ...]:
    """The findings on one device, those first that save most."""
    if not len(record.events):
        return ()
    if record.device == HOST:  # nothing is computed in it, and no device refuses it
        return tuple(_growth(told, of="pinned host memory "))
    found = [
        *_fragmentation(record, alive, reserved, told, settings),
        *_activations(told),
        *_growth(told),
        *_retries(told),
    ]
    return tuple(sorted(found, key=lambda one: -(one.saves_bytes or 0)))


def _fragmentation(
    record: DeviceRecord, alive: Lifetimes, reserved: Reserved | None, told: DeviceMemory, settings: AllocatorSettings
) -> Iterator[MemoryFinding]:
    """Whether expandable segments would have needed less, if the simulated allocator matches the record.

    If memory ran out, the remedies for it say whether expandable segments help.
    """
    if told.out_of_memory:
        return
    if reserved is None or settings.expandable_segments or not 0 < len(alive) <= MOST_SIMULATED:
        return
    peak = int(reserved.levels.max())
    if peak < _LEAST or peak - told.peak.allocated_bytes < _WORTH * peak:
        return
    requests = requests_of(record, alive)
    retold = simulate(requests, settings).peak_reserved_bytes
    if abs(retold - peak) > _CLOSE * peak:
        return
    expandable = simulate(requests, replace(settings, expandable_segments=True)).peak_reserved_bytes
    if peak - expandable < _WORTH * peak:
        return
    yield MemoryFinding(
        id="memory.fragmentation",
        says="segments of fixed sizes hold what later sizes do not fit into",
        remedy="PYTORCH_ALLOC_CONF=expandable_segments:True",
        saves_bytes=peak - expandable,
        known_by=f"simulated: {_mib(retold)} reserved as it was (recorded {_mib(peak)}), {_mib(expandable)} so",
    )


def _mib(bytes_: int) -> str:
    return f"{bytes_ / MIB:,.0f} MiB"


def _activations(told: DeviceMemory) -> Iterator[MemoryFinding]:
    held = {one.category: one.bytes for one in told.peak.held}
    bytes_ = held.get(Category.ACTIVATIONS, 0)
    if bytes_ < _MOST_OF_IT * told.peak.allocated_bytes or told.peak.allocated_bytes < _LEAST:
        return
    held_by = [one for one in told.peak.holders if one.category is Category.ACTIVATIONS and one.site is not None]
    lines = [one for one in held_by if one.count > 1] or held_by  # a line that runs once, as the loss does, is no block
    most = sum(one.bytes for one in lines[:_MOST_LINES])
    named = ", ".join(str(one.site) for one in lines[:_MOST_LINES])
    largest = f", {_mib(lines[0].bytes)} of them from {lines[0].site}" if lines else ""
    yield MemoryFinding(
        id="memory.activation-bound",
        says="what the forward pass keeps for the backward pass is most of the peak, and grows with the batch",
        remedy=f"torch.utils.checkpoint around {named or 'the blocks'}: computed again instead of kept",
        saves_bytes=most or bytes_,
        known_by=f"{_mib(bytes_)} of {_mib(told.peak.allocated_bytes)} at the peak{largest}; saved is what these lines "
        "hold, less where a part of it must be kept as input",
    )


def _growth(told: DeviceMemory, of: str = "") -> Iterator[MemoryFinding]:
    if told.growth is None:
        return
    named = next((f" at {one.site}" for one in told.growth.sites if one.site is not None), "")
    losses = "" if of else ", a loss that is summed without .item()"
    yield MemoryFinding(
        id="memory.growth",
        says=f"each step leaves more {of}allocated than the one before",
        remedy=f"let go of what is kept{named}: tensors in a list{losses}",
        saves_bytes=told.growth.bytes_per_step * told.growth.steps,
        known_by=f"{told.growth.steps} steps of the record",
    )


def _retries(told: DeviceMemory) -> Iterator[MemoryFinding]:
    if not told.given_back_under_pressure:
        return
    most = told.retried_bytes
    remedy = "a smaller peak, or expandable_segments:True: anything that keeps the device from being full"
    if told.out_of_memory:
        remedy = "the same remedies that make room where memory ran out"
    enough = (
        ""
        if most is None
        else f"; the most it then gave was {_mib(most)}: reserving that much less would have been enough"
    )
    yield MemoryFinding(
        id="memory.allocator-retry",
        says="the device refused, and the allocator waited for it to give back what was cached",
        remedy=remedy,
        saves_bytes=None,
        known_by=f"segments given back and asked for again at once, {told.given_back_under_pressure:,} times{enough}",
        saves_unknown_because="a retry costs time, not memory",
        enough_bytes=most,
    )
