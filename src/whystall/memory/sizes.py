"""The rounding of torch's caching allocator: sizes of blocks, and of the segments that it requests from a device."""

from __future__ import annotations

from typing import Final

from whystall.memory.allocator_settings import DEFAULT, MIB, AllocatorSettings

__all__ = ["LEAST", "OWN_SEGMENT", "SEGMENT_ROUNDING", "SMALL", "SMALL_SEGMENT", "round_size", "segment_size", "up_to"]

# c10/core/AllocatorConfig.h of torch 2.13; before, the same numbers in c10/cuda/CUDACachingAllocator.cpp.
LEAST: Final = 512
"""Bytes of the smallest block; all are multiples of it."""
SMALL: Final = MIB
"""The largest block that comes from the small pool."""
SMALL_SEGMENT: Final = 2 * MIB
"""A segment of the small pool."""
OWN_SEGMENT: Final = 10 * MIB
"""From here on a block that no free one serves gets a segment of its own."""
SEGMENT_ROUNDING: Final = 2 * MIB
"""Sizes of such segments are multiples of this."""


def round_size(size_bytes: int, settings: AllocatorSettings = DEFAULT) -> int:
    """The size of the block that serves ``size_bytes``, where no larger one is handed out whole.

    >>> from whystall.memory.allocator_settings import parse_settings
    >>> round_size(1), round_size(513), round_size(1200 * 1024, parse_settings("roundup_power2_divisions:4")) // 1024
    (512, 1024, 1280)
    """
    if size_bytes < LEAST:
        return LEAST
    divisions = settings.divisions(size_bytes)
    if divisions > 1 and size_bytes > LEAST * divisions:
        floor = 1 << (size_bytes.bit_length() - 1)
        return up_to(size_bytes, floor // divisions)
    return up_to(size_bytes, LEAST)


def segment_size(size_bytes: int, settings: AllocatorSettings = DEFAULT) -> int:
    """Memory requested from the device for a block of ``size_bytes`` (rounded) that no free block serves."""
    if size_bytes <= SMALL:
        return SMALL_SEGMENT
    if size_bytes < OWN_SEGMENT:
        return settings.large_segment_bytes
    return up_to(size_bytes, SEGMENT_ROUNDING)


def up_to(value: int, step: int) -> int:
    """The least multiple of ``step`` that is no smaller."""
    return -(-value // step) * step
