"""What this machine has for workers: cores, and the memory that is free on it and in this process's group."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import psutil

BASE_BYTES: Final = 160 << 20
"""A worker with the library loaded, and what it keeps between two files."""
TIMES_RAW: Final = 0.8
"""Peak memory of summarising a file over the size of its JSON: 0.4 to 0.7 were measured (docs/performance.md)."""
KEPT_FREE: Final = 0.1
"""The share of free memory that is left to others."""
_GROUP: Final = Path("/sys/fs/cgroup")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def needed_bytes(raw_bytes: int) -> int:
    """What a worker needs at its peak for a file of so many bytes unpacked."""
    return BASE_BYTES + int(TIMES_RAW * raw_bytes)


def free_bytes(group: Path = _GROUP) -> int:
    """What may be taken without anybody having to give up memory, as the machine and the process's group allow."""
    free = psutil.virtual_memory().available
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit is not None and used is not None:
        free = min(free, limit - used + _of_files(group / "memory.stat"))
    return max(int(free * (1 - KEPT_FREE)), 0)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such group, or "max"
        return None


def _of_files(path: Path) -> int:
    """The part of a group's memory that holds copies of files, which is given back when it is needed."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
