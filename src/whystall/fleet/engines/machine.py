"""Resources of this machine for workers: cores, and the memory that is free on it and in this process's group."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from whystall.trace import room

BASE_BYTES: Final = 160 << 20
"""A worker with the library loaded, and its memory between two files."""
TIMES_RAW: Final = 0.8
"""Peak memory of summarising a file over the size of its JSON: 0.4 to 0.7 were measured (docs/performance.md)."""
KEPT_FREE: Final = 0.1
"""The share of free memory that is left to others."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def needed_bytes(raw_bytes: int) -> int:
    """A worker's memory at its peak for a file of ``raw_bytes`` unpacked."""
    return BASE_BYTES + int(TIMES_RAW * raw_bytes)


def free_bytes(group: Path = room.GROUP) -> int:
    """Memory that can be taken without forcing another process to give up any."""
    return int(room.free_bytes(group) * (1 - KEPT_FREE))
