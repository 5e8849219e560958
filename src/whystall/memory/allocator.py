"""Simulates torch's caching allocator: the memory that it reserves for a sequence of allocations and frees.

The rules are those of c10/cuda/CUDACachingAllocator.cpp. Sizes are rounded to 512 B; up to 1 MiB they come from
segments of 2 MiB, up to 10 MiB from segments of 20 MiB, above that from one of their own, rounded to 2 MiB. A free
block serves only its own stream, the smallest that fits first; a block that is too large is split, and free neighbours
become one block again. Free segments are returned only when the device refuses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.allocator_settings import DEFAULT, AllocatorSettings
from whystall.memory.blocks import Block, FreeKey, Pool, join
from whystall.memory.sizes import LEAST, SEGMENT_ROUNDING, SMALL, SMALL_SEGMENT, round_size, segment_size, up_to

__all__ = ["Allocation", "Completion", "Course", "Free", "simulate"]

_FIRST_ADDRESS: Final = 1 << 40
_ADDRESS_SPACE: Final = 1 << 46  # of an expandable segment on a device without end


@dataclass(frozen=True, slots=True)
class Allocation:
    """A request for memory on a stream; ``pool`` is 0 except for the private pools of CUDA graphs and MemPools."""

    key: Hashable
    size_bytes: int
    stream: int = 0
    pool: int = 0


@dataclass(frozen=True, slots=True)
class Free:
    """The end of an allocation; ``pending`` if another stream still uses the memory (record_stream)."""

    key: Hashable
    pending: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """The other streams are done with a pending free: its memory can serve again."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Course:
    """Memory held after each event. ``failed_at`` is the event that ran out of memory, with which the course ends."""

    allocated_bytes: NDArray[np.int64]
    active_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]
    failed_at: int | None
    retries: int
    segments_made: int
    segments_freed: int

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that tensors held; as ``max_memory_allocated`` counts it."""
        return int(self.allocated_bytes.max(initial=0))

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that the allocator held; as ``max_memory_reserved`` counts it."""
        return int(self.reserved_bytes.max(initial=0))


def simulate(events: Iterable[Allocation | Free | Completion], settings: AllocatorSettings = DEFAULT) -> Course:
    """Memory held by one device's allocator after each event. Raises ``ValueError`` for a key out of turn.

    Addresses of segments grow and are not used again; of free blocks of one size the lowest is taken. An allocation of
    0 bytes takes nothing.

    >>> from whystall.memory.allocator_settings import MIB
    >>> course = simulate([Allocation("weights", 3 * MIB), Allocation("bias", 100), Free("weights")])
    >>> course.allocated_bytes.tolist(), (course.reserved_bytes // MIB).tolist()
    ([3145728, 3146240, 512], [20, 22, 22])
    """
    allocator = _Allocator(settings)
    held: list[tuple[int, int, int]] = []
    failed_at: int | None = None
    for number, event in enumerate(events):
        if isinstance(event, Allocation):
            if not allocator.allocate(event):
                failed_at = number
                break
        elif isinstance(event, Free):
            allocator.free(event)
        else:
            allocator.complete(event.key)
        held.append((allocator.allocated, allocator.active, allocator.reserved))
    columns = np.array(held, np.int64).reshape(-1, 3)
    return Course(
        allocated_bytes=columns[:, 0],
        active_bytes=columns[:, 1],
        reserved_bytes=columns[:, 2],
        failed_at=failed_at,
        retries=allocator.retries,
        segments_made=allocator.segments_made,
        segments_freed=allocator.segments_freed,
    )


class _Allocator:
    """The state of one device's allocator."""

    def __init__(self, settings: AllocatorSettings) -> None:
        self.settings = settings
        self.allocated = self.active = self.reserved = 0
        self.retries = self.segments_made = self.segments_freed = 0
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._live: dict[Hashable, Block | None] = {}
        self._pending: dict[Hashable, Block] = {}
        self._next_address = _FIRST_ADDRESS

    # --- events -------------------------------------------------------------------------------------------------------

    def allocate(self, event: Allocation) -> bool:
        """Whether there was room."""
        if event.key in self._live or event.key in self._pending:
            raise ValueError(f"{event.key!r} is allocated already")
        if event.size_bytes <= 0:
            self._live[event.key] = None
            return True
        size = round_size(event.size_bytes, self.settings)
        pool = self._pool(event.pool, size)
        block = self._cached(pool, size, event.stream) or self._from_device(pool, size, event.stream)
        if block is None:
            return False
        if self._splits(block, size):
            self._split(block, size)
        block.allocated = True
        self._live[event.key] = block
        self.allocated += block.size
        self.active += block.size
        return True

    def free(self, event: Free) -> None:
        """Takes the memory back, at once or when the other streams are done."""
        if event.key not in self._live:
            raise ValueError(f"{event.key!r} is not allocated")
        block = self._live.pop(event.key)
        if block is None:
            return
        block.allocated = False
        self.allocated -= block.size
        if event.pending:
            block.pending = True
            self._pending[event.key] = block
        else:
            self._release(block)

    def complete(self, key: Hashable) -> None:
        """Completes a pending free; does nothing if the allocator has waited for it already."""
        block = self._pending.pop(key, None)
        if block is not None:
            self._release(block)

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _pool(self, owner: int, size: int) -> Pool:
        key = (owner, size <= SMALL)
        if key not in self._pools:
            self._pools[key] = Pool(small=key[1])
        return self._pools[key]

    def _release(self, block: Block) -> None:
        """A block becomes free, one with its free neighbours."""
        block.pending = False
        self.active -= block.size
        pool = block.pool
        for neighbour in (block.before, block.after):
            join(block, neighbour)
        pool.add_free(block)

    def _splits(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.small or self.settings.expandable_segments:
            return rest >= LEAST
        return self._splittable(size) and rest > SMALL

    def _splittable(self, size: int) -> bool:
        limit = self.settings.max_split_size_bytes
        return limit is None or size < limit

    @staticmethod
    def _split(block: Block, size: int) -> None:
        """Keeps ``size`` of the block; the rest is free."""
        rest = Block(block.pool, block.stream, block.address + size, block.size - size, expandable=block.expandable)
        rest.put_after(block)
        block.size = size
        block.pool.add_free(rest)

    def _cached(self, pool: Pool, size: int, stream: int) -> Block | None:
        """The free block that serves best, taken out of the pool."""
        if self._collects():
            pool.searches += 1
        place = bisect_left(pool.free, FreeKey(stream, size, 0))
        if place == len(pool.free) or pool.free[place][0] != stream:
            return None
        block = pool.block(pool.free[place])
        while block.expandable and place + 1 < len(pool.free) and pool.free[place + 1][0] == stream:
            follower = pool.block(pool.free[place + 1])  # the growing block leaves the most room unused
            if follower.could_grow_to >= block.could_grow_to:
                break
            place, block = place + 1, follower
        limit = self.settings.max_split_size_bytes
        if limit is not None and size < limit <= block.size:
            return None
        if limit is not None and size >= limit and block.size >= size + self.settings.max_non_split_rounding_bytes:
            return None
        pool.remove_free(block)
        return block

    # --- the device ---------------------------------------------------------------------------------------------------

    def _from_device(self, pool: Pool, size: int, stream: int) -> Block | None:
        """A block from the device, if necessary after cached segments were returned to it."""
        if self._collects():
            self._collect_garbage()
        block = self._ask(pool, size, stream)
        if block is None and self._give_back_enough(pool, size, stream):
            block = self._ask(pool, size, stream)
        if block is None:
            self._give_back_all()
            self.retries += 1
            block = self._ask(pool, size, stream)
        return block

    def _ask(self, pool: Pool, size: int, stream: int) -> Block | None:
        wanted = segment_size(size, self.settings)
        limit = self.settings.limit_bytes
        if limit is not None and self.reserved + wanted > limit:
            return None
        if self.settings.expandable_segments:
            return self._expand(pool, size, stream)
        if not self._fits(wanted):
            return None
        self.reserved += wanted
        self.segments_made += 1
        return Block(pool, stream, self._address(wanted), wanted)

    def _fits(self, size: int) -> bool:
        return self.settings.device_bytes is None or self.reserved + size <= self.settings.device_bytes

    def _address(self, size: int) -> int:
        address = self._next_address
        self._next_address += up_to(size, SEGMENT_ROUNDING)
        return address

    def _collects(self) -> bool:
        return self.settings.garbage_collection_threshold > 0 and self.settings.limit_bytes is not None

    def _collect_garbage(self) -> None:
        """Gives back whole blocks that were passed over longer than the others, until enough is free."""
        most = int(self.settings.garbage_collection_threshold * (self.settings.limit_bytes or 0))
        target = self.reserved - most
        pool = self._pools.get((0, False))
        if target <= 0 or pool is None:
            return
        whole = [block for block in map(pool.block, pool.free) if not block.is_part]
        freed = -1
        while whole and target > 0 and freed != 0:
            oldest = sum(block.age for block in whole) / len(whole)
            old = [block for block in whole if block.age >= oldest and not block.expandable]
            whole = [block for block in whole if block.age < oldest or block.expandable]
            for block in old:
                self._give_back(block)
            freed = sum(block.size for block in old)
            target -= freed

    def _give_back(self, block: Block) -> None:
        block.pool.remove_free(block)
        self.reserved -= block.size
        self.segments_freed += 1

    def _give_back_enough(self, pool: Pool, size: int, stream: int) -> bool:
        """Whether one free block that is too large to be split, or several, made room for ``size``."""
        limit = self.settings.max_split_size_bytes
        if limit is None:
            return False
        wanted = max(size, limit)
        place = bisect_left(pool.free, FreeKey(stream, wanted, 0))
        if place < len(pool.free) and pool.free[place][0] == stream and not pool.block(pool.free[place]).expandable:
            self._give_back(pool.block(pool.free[place]))
            return True
        given = 0
        for key in reversed(pool.free[:place]):
            if given >= wanted or key[0] != stream or key[1] < limit:
                break
            block = pool.block(key)
            if not block.expandable:
                given += block.size
                self._give_back(block)
        return given >= wanted

    def _give_back_all(self) -> None:
        """Waits for pending frees, then returns every segment of the common pools that is free as a whole."""
        for key in list(self._pending):
            self.complete(key)
        for small in (False, True):
            pool = self._pools.get((0, small))
            for block in [] if pool is None else [pool.block(key) for key in pool.free]:
                if block.expandable:
                    self._unmap(block)
                elif not block.is_part:
                    self._give_back(block)

    # --- expandable segments ------------------------------------------------------------------------------------------

    def _page(self, pool: Pool) -> int:
        return SMALL_SEGMENT if pool.small else self.settings.large_segment_bytes

    def _expand(self, pool: Pool, size: int, stream: int) -> Block | None:
        """The lowest place where free and unmapped blocks in a row have room for ``size``, mapped."""
        block = self._growing(pool, size, stream)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.after
            if after is None or not self._map(after, min(size - block.size, after.size)):
                return None
            block = after  # which has taken in the one before it
        pool.remove_free(block)
        return block

    def _growing(self, pool: Pool, size: int, stream: int) -> Block:
        for key in pool.unmapped[bisect_left(pool.unmapped, (stream, 0)) :]:
            if key[0] != stream:
                break
            block = pool.by_address[key[1]]
            if block.before is not None and block.before.is_free:
                block = block.before
            if block.free_in_a_row(size):
                return block
        page = self._page(pool)
        room = _ADDRESS_SPACE if self.settings.device_bytes is None else self.settings.device_bytes * 9 // 8
        whole = up_to(room, page)
        self._next_address = up_to(self._next_address, page)
        block = Block(pool, stream, self._address(whole), whole, expandable=True, mapped=False)
        pool.add_unmapped(block)
        self.segments_made += 1
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Whether the first pages of an unmapped block, those that hold ``size``, now have memory."""
        mapped = up_to(size, self._page(block.pool))
        if not self._fits(mapped):
            return False
        pool = block.pool
        pool.remove_unmapped(block)
        if mapped < block.size:
            rest = Block(pool, block.stream, block.address + mapped, block.size - mapped, expandable=True, mapped=False)
            rest.put_after(block)
            block.size = mapped
            pool.add_unmapped(rest)
        block.mapped = True
        for neighbour in (block.before, block.after):
            join(block, neighbour)
        pool.add_free(block)
        self.reserved += mapped
        return True

    def _unmap(self, block: Block) -> None:
        """Returns the whole pages of a free block; the parts beside them stay free."""
        page = self._page(block.pool)
        begin = up_to(block.address, page)
        end = (block.address + block.size) // page * page
        if end <= begin:
            return
        pool = block.pool
        pool.remove_free(block)
        tail = block.address + block.size - end
        if begin > block.address:
            head = Block(pool, block.stream, block.address, begin - block.address, expandable=True)
            if block.before is not None:
                head.put_after(block.before)
            head.after, block.before = block, head
            pool.add_free(head)
        block.address, block.size, block.mapped = begin, end - begin, False
        if tail:
            rest = Block(pool, block.stream, end, tail, expandable=True)
            rest.put_after(block)
            pool.add_free(rest)
        self.reserved -= block.size
        for neighbour in (block.before, block.after):
            join(block, neighbour)
        if block.is_part:
            pool.add_unmapped(block)
        else:
            self.segments_freed += 1
