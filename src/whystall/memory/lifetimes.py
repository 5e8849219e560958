"""From an allocator's events to allocations with a beginning and an end, and to the held memory after each event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall._native import match_allocations
from whystall.memory.allocator_settings import AllocatorSettings
from whystall.memory.sizes import round_size
from whystall.memory.snapshot import Action, DeviceRecord, Events, State

__all__ = ["BEFORE", "Lifetimes", "Reserved", "allocated_course", "lifetimes", "reserved_course"]

BEFORE: Final = -1
"""The row at which an allocation began that the record does not hold."""

Rows = NDArray[np.int64]
Numbers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Allocations by their beginning: those before the record first.

    ``begin`` is the event's row, or `BEFORE`; ``end`` the row of the free, or the number of events if there is none.
    Sizes are of blocks: rounded as the allocator rounds. ``requested`` is the size before rounding.
    """

    begin: Rows
    end: Rows
    size: Rows
    requested: Rows
    stack: Numbers
    metadata: Numbers
    lost: int
    """Allocations whose end the record lacks: their address was handed out again."""

    def __len__(self) -> int:
        return len(self.begin)

    def chosen(self, rows: Rows) -> Lifetimes:
        """Some of them."""
        names = ("begin", "end", "size", "requested", "stack", "metadata")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def alive_at(self, row: int) -> NDArray[np.bool_]:
        """Which of them hold memory right after the event of a row."""
        return (self.begin <= row) & (self.end > row)


def lifetimes(record: DeviceRecord, settings: AllocatorSettings) -> Lifetimes:
    """The allocations of a device, with those that were there before the record began."""
    events = record.events
    inside, unmatched = _matched(events)
    lived_on = _unrecorded(record)
    blocks = record.blocks
    begin = np.concatenate([np.full(len(lived_on) + len(unmatched), BEFORE), inside.begin])
    end = np.concatenate([np.full(len(lived_on), len(events)), unmatched, inside.end])
    rows = np.concatenate([unmatched, inside.begin])  # whose event has the size
    requested = np.concatenate([blocks.requested[lived_on], events.size[rows].astype(np.int64)])
    none = np.full(len(lived_on) + len(unmatched), -1, np.int32)
    metadata = _labelled(inside, events)
    size = np.concatenate([blocks.size[lived_on], _rounded(events.size[rows], settings)])
    _correct(size[len(lived_on) + len(unmatched) :], inside, record)
    return Lifetimes(
        begin=begin,
        end=end,
        size=size,
        requested=requested,
        stack=np.concatenate(
            [blocks.stack[lived_on].astype(np.int32), none[len(lived_on) :], events.stack[inside.begin]]
        ),
        metadata=np.concatenate([none, metadata]),
        lost=inside.lost,
    )


@dataclass(frozen=True, slots=True)
class _Inside:
    begin: Rows
    end: Rows
    lost: int


def _matched(events: Events) -> tuple[_Inside, Rows]:
    """The allocations that the record holds, and the rows of frees of those that it does not.

    Addresses are used again: a free belongs to the last allocation at its address. A free has two events; the first
    counts, since returned memory is no longer allocated, even while another stream uses it.
    """
    move = np.zeros(max(Action) + 2, np.int8)
    move[[Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]] = (1, 2, 3)
    begin, end, unmatched, lost = match_allocations(move[events.action], events.address.astype(np.int64, copy=False))
    return _Inside(begin, end, lost), unmatched


def _labelled(inside: _Inside, events: Events) -> Numbers:
    """The label of each allocation: the current one when it was made, or a later one at its address."""
    labels: Numbers = events.metadata[inside.begin].astype(np.int32)
    later = np.flatnonzero((events.action == Action.ANNOTATE) & (events.metadata >= 0))
    if not len(later):
        return labels
    rows = np.concatenate([inside.begin, later])
    made = np.concatenate([np.arange(len(inside.begin)), np.full(len(later), -1)])
    order = np.lexsort((rows, events.address[rows]))
    address, made, rows = events.address[rows[order]], made[order], rows[order]
    place = np.arange(len(order))
    last = np.maximum.accumulate(np.where(made >= 0, place, 0))
    own = (made < 0) & (made[last] >= 0) & (address[last] == address)
    own[own] = rows[own] < inside.end[made[last[own]]]
    labels[made[last[own]]] = events.metadata[rows[own]]
    return labels


def _unrecorded(record: DeviceRecord) -> Rows:
    """The blocks that are held at the end and whose allocation the record lacks."""
    blocks, events = record.blocks, record.events
    held = np.flatnonzero(blocks.state == State.ACTIVE)
    return held[~np.isin(blocks.address[held], events.address[events.action == Action.ALLOC])]


def _correct(size: Rows, inside: _Inside, record: DeviceRecord) -> None:
    """Gives an allocation held at the end the size of its block, which may be larger than the rounding suggests."""
    blocks, events = record.blocks, record.events
    held = np.flatnonzero(blocks.state == State.ACTIVE)
    alive = np.flatnonzero(inside.end == len(events))
    if not len(held) or not len(alive):
        return
    held = held[np.argsort(blocks.address[held], kind="stable")]
    address = events.address[inside.begin[alive]]
    place = np.minimum(np.searchsorted(blocks.address[held], address), len(held) - 1)
    same = blocks.address[held[place]] == address
    size[alive[same]] = blocks.size[held[place[same]]]


def _rounded(size: NDArray[Any], settings: AllocatorSettings) -> Rows:
    """The sizes of the blocks that serve these; a larger one is handed out whole where too little would be left."""
    if any(power > 1 for power in settings.roundup_power2_divisions):
        distinct, place = np.unique(size, return_inverse=True)
        return np.array([round_size(int(one), settings) for one in distinct], np.int64)[place]
    return np.maximum((size.astype(np.int64) + 511) // 512, 1) * 512


def allocated_course(alive: Lifetimes, events: int) -> Rows:
    """The bytes allocated after each event."""
    change = np.zeros(events, np.int64)
    before = alive.begin == BEFORE
    change[alive.begin[~before]] += alive.size[~before]  # a row begins one allocation at most, and ends one
    ended = alive.end < events
    change[alive.end[ended]] -= alive.size[ended]
    if events:
        change[0] += int(alive.size[before].sum())
    return np.cumsum(change, out=change)


@dataclass(frozen=True, slots=True)
class Reserved:
    """The bytes reserved: ``levels`` from each of ``rows`` on, the first from the record's beginning."""

    rows: Rows
    levels: Rows

    def at(self, row: int) -> int:
        """The bytes after the event of a row."""
        return int(self.levels[int(np.searchsorted(self.rows, row, side="right")) - 1])

    def holds(self, allocated: Rows) -> bool:
        """Whether no more is allocated at any time."""
        if not len(allocated):
            return True
        return bool((np.maximum.reduceat(allocated, self.rows) <= self.levels).all())


def reserved_course(record: DeviceRecord) -> Reserved | None:
    """Reserved memory, computed backwards from the end; `None` where the end is not known."""
    if not len(record.segments):
        return None
    sign = np.zeros(max(Action) + 2, np.int64)
    sign[[Action.SEGMENT_ALLOC, Action.SEGMENT_MAP]] = 1
    sign[[Action.SEGMENT_FREE, Action.SEGMENT_UNMAP]] = -1
    action = record.events.action
    rows = np.flatnonzero(np.isin(action, np.flatnonzero(sign).astype(np.int8)))
    change = np.cumsum(sign[action[rows]] * record.events.size[rows].astype(np.int64))
    end = int(record.segments.total.sum())
    before = end - (int(change[-1]) if len(change) else 0)
    levels = np.append(before, before + change)
    rows = np.append(0, rows)
    keep = np.append(rows[1:] != rows[:-1], True)  # where the very first event changes it
    return Reserved(rows[keep], levels[keep])
