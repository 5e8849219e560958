"""From an allocator's events to allocations with a beginning and an end, and to what was held after each event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.allocator_settings import AllocatorSettings
from whystall.memory.sizes import round_size
from whystall.memory.snapshot import Action, DeviceRecord, Events, State

__all__ = ["BEFORE", "Lifetimes", "allocated_course", "lifetimes", "reserved_course"]

BEFORE: Final = -1
"""The row at which an allocation began that the record does not hold."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Allocations by when they began: those before the record first.

    ``begin`` is the event's row, or `BEFORE`; ``end`` the row that gave the memory back, or the number of events where
    none did. Sizes are of blocks: rounded as the allocator rounds. ``requested`` is what was asked for.
    """

    begin: Rows
    end: Rows
    size: Rows
    requested: Rows
    stack: Rows
    metadata: Rows
    context: Rows
    lost: int
    """Allocations whose end the record lacks: their address was handed out again."""

    def __len__(self) -> int:
        return len(self.begin)

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
    rows = np.concatenate([unmatched, inside.begin])  # whose event tells the size
    requested = np.concatenate([blocks.requested[lived_on], events.size[rows].astype(np.int64)])
    none = np.full(len(lived_on) + len(unmatched), -1)
    size = np.concatenate([blocks.size[lived_on], _rounded(events.size[rows], settings)])
    _correct(size[len(lived_on) + len(unmatched) :], inside, record)
    return Lifetimes(
        begin=begin,
        end=end,
        size=size,
        requested=requested,
        stack=np.concatenate([blocks.stack[lived_on], none[len(lived_on) :], events.stack[inside.begin]]),
        metadata=np.concatenate([none, events.metadata[inside.begin]]),
        context=np.concatenate([none, events.context[inside.begin]]),
        lost=inside.lost,
    )


@dataclass(frozen=True, slots=True)
class _Inside:
    begin: Rows
    end: Rows
    lost: int


def _matched(events: Events) -> tuple[_Inside, Rows]:
    """The allocations that the record holds, and the rows of frees of those that it does not.

    Addresses are used again: a free belongs to the last allocation at its address. Of the two events of a free the
    first counts, since what is given back is no longer allocated, even while another stream uses it.
    """
    frees = (events.action == Action.FREE_REQUESTED) | (events.action == Action.FREE_COMPLETED)
    asked = np.flatnonzero((events.action == Action.ALLOC) | frees)
    order = asked[np.argsort(events.address[asked], kind="stable")]
    if not len(order):
        nothing = np.zeros(0, np.int64)
        return _Inside(nothing, nothing, 0), nothing
    address = events.address[order]
    starts = np.append(True, address[1:] != address[:-1])
    is_free = frees[order]
    place = np.arange(len(order))
    last_alloc = np.maximum.accumulate(np.where(is_free, -1, place))
    group = np.maximum.accumulate(np.where(starts, place, 0))
    owner = np.where(last_alloc >= group, last_alloc, -1)
    ends = is_free & np.append(False, ~is_free[:-1]) & (owner >= 0)  # directly after its allocation
    end = np.full(len(order), len(events))
    end[owner[ends]] = order[ends]
    again = ~is_free & ~starts & np.append(False, ~is_free[:-1])  # handed out twice with no free in between
    end[place[again] - 1] = order[again]
    begin = order[~is_free]
    by_row = np.argsort(begin, kind="stable")
    unmatched = is_free & starts
    requests = (events.action == Action.FREE_REQUESTED).any()
    if requests:  # a completed one whose request came before the record held nothing by then
        unmatched &= events.action[order] == Action.FREE_REQUESTED
    return _Inside(begin[by_row], end[~is_free][by_row], int(again.sum())), np.sort(order[unmatched])


def _unrecorded(record: DeviceRecord) -> Rows:
    """The blocks that are held at the end and whose allocation the record lacks."""
    blocks, events = record.blocks, record.events
    held = np.flatnonzero(blocks.state == State.ACTIVE)
    return held[~np.isin(blocks.address[held], events.address[events.action == Action.ALLOC])]


def _correct(size: Rows, inside: _Inside, record: DeviceRecord) -> None:
    """Gives what is held at the end the size of its block, which may be larger than the rounding says."""
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
    change = np.zeros(events + 1, np.int64)
    before = alive.begin == BEFORE
    np.add.at(change, alive.begin[~before], alive.size[~before])
    ended = alive.end < events
    np.subtract.at(change, alive.end[ended], alive.size[ended])
    change[0] += int(alive.size[before].sum())
    return np.cumsum(change)[:-1]


def reserved_course(record: DeviceRecord) -> Rows | None:
    """The bytes reserved after each event, reckoned back from the end; `None` where the end is not known."""
    if not len(record.segments):
        return None
    action, size = record.events.action, record.events.size
    grows = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)
    shrinks = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    change = np.cumsum(np.where(grows, size, 0) - np.where(shrinks, size, 0).astype(np.int64))
    return change + (int(record.segments.total.sum()) - int(change[-1]) if len(change) else 0)
