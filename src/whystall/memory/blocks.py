"""Blocks of device memory and the pools in which the free ones wait, for the simulated allocator."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

__all__ = ["Block", "FreeKey", "Pool", "join"]


class FreeKey(NamedTuple):
    """Sort key of free blocks: by stream, then by size, then by address."""

    stream: int
    size: int
    address: int


class Block:
    """A part of one segment: allocated, waiting for streams, free, or, in an expandable segment, unmapped."""

    __slots__ = ("address", "after", "allocated", "before", "expandable", "inserted_at", "mapped", "pending", "pool",
                 "size", "stream")  # fmt: skip

    def __init__(
        self, pool: Pool, stream: int, address: int, size: int, *, expandable: bool = False, mapped: bool = True
    ) -> None:
        self.pool = pool
        self.stream = stream
        self.address = address
        self.size = size
        self.expandable = expandable
        self.mapped = mapped
        self.allocated = False
        self.pending = False
        self.before: Block | None = None
        self.after: Block | None = None
        self.inserted_at = 0

    @property
    def key(self) -> FreeKey:
        """Key of the block while it is free."""
        return FreeKey(self.stream, self.size, self.address)

    @property
    def is_free(self) -> bool:
        """Whether the block is free; it may still lack memory."""
        return not self.allocated and not self.pending

    @property
    def is_part(self) -> bool:
        """Whether the segment holds other blocks, too."""
        return self.before is not None or self.after is not None

    @property
    def age(self) -> int:
        """How many searches passed since the block became free."""
        return self.pool.searches - self.inserted_at

    @property
    def could_grow_to(self) -> int:
        """Its size with the part without memory that follows it."""
        return self.size if self.after is None or self.after.mapped else self.size + self.after.size

    def free_in_a_row(self, size: int) -> bool:
        """Whether it and the free blocks after it, with memory or without, have room for ``size``."""
        room = 0
        block: Block | None = self
        while block is not None and block.is_free and room < size:
            room += block.size
            block = block.after
        return room >= size

    def put_after(self, block: Block) -> None:
        """Becomes the neighbour that follows ``block``."""
        self.before, self.after = block, block.after
        if block.after is not None:
            block.after.before = self
        block.after = self


class Pool:
    """The free blocks of one kind, in order, and the unmapped parts of expandable segments."""

    __slots__ = ("by_address", "free", "searches", "small", "unmapped")

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.free: list[FreeKey] = []
        self.unmapped: list[tuple[int, int]] = []  # stream and address
        self.by_address: dict[int, Block] = {}  # those in either list
        self.searches = 0

    def block(self, key: FreeKey) -> Block:
        """The free block of a key."""
        return self.by_address[key.address]

    def add_free(self, block: Block) -> None:
        """Takes a block in."""
        block.inserted_at = self.searches
        insort(self.free, block.key)
        self.by_address[block.address] = block

    def remove_free(self, block: Block) -> None:
        """Lets a block go, before its size or address changes."""
        del self.free[bisect_left(self.free, block.key)]
        del self.by_address[block.address]

    def add_unmapped(self, block: Block) -> None:
        """Takes a part without memory in."""
        insort(self.unmapped, (block.stream, block.address))
        self.by_address[block.address] = block

    def remove_unmapped(self, block: Block) -> None:
        """Lets a part without memory go."""
        del self.unmapped[bisect_left(self.unmapped, (block.stream, block.address))]
        del self.by_address[block.address]


def join(block: Block, neighbour: Block | None) -> None:
    """Merges two blocks if the neighbour is free and both are mapped, or both unmapped."""
    if neighbour is None or not neighbour.is_free or neighbour.mapped != block.mapped:
        return
    if neighbour.mapped:
        neighbour.pool.remove_free(neighbour)
    else:
        neighbour.pool.remove_unmapped(neighbour)
    if neighbour is block.before:
        block.address = neighbour.address
        block.before = neighbour.before
        if block.before is not None:
            block.before.after = block
    else:
        block.after = neighbour.after
        if block.after is not None:
            block.after.before = block
    block.size += neighbour.size
