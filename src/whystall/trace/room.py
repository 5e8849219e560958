"""The memory that a recording may take.

A process that exceeds it is ended by the system, or by a library: a larger need is refused before.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

import psutil

from whystall.trace.errors import InputError

# Memory of an event at the peak of an analysis, measured on 2 to 10 million equal ones (2026-11-28): 210 bytes on the
# host, 320 of a backward pass, 450 of a kernel, 930 of a collective.
BYTES_AN_EVENT: Final = 250
BYTES_A_DEVICE_EVENT: Final = 1000
GROUP: Final = Path("/sys/fs/cgroup")
"""The control group of this process, as its own namespace shows it."""
_GIB: Final = 1 << 30
_LITTLE: Final = 256 << 20  # is tried however little is free


class Room:
    """The memory that was free when the reading of a file began."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._free = free_bytes()

    def require(self, events: int, *, device_events: int = 0) -> None:
        """Raises `InputError` where an analysis of ``events`` events takes more memory than was free."""
        needed = BYTES_AN_EVENT * (events - device_events) + BYTES_A_DEVICE_EVENT * device_events
        if needed > max(self._free, _LITTLE):
            raise InputError(
                f"{self._name} holds at least {events:,} events; analysing them takes {needed / _GIB:.1f} GiB of "
                f"memory, but only {self._free / _GIB:.1f} GiB is free: free some memory, or record fewer steps"
            )


def free_bytes(group: Path = GROUP) -> int:
    """Memory that this process can still take of the machine, of its group, and of its limit (``ulimit -v``)."""
    free = int(psutil.virtual_memory().available)
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit is not None and used is not None:
        free = min(free, limit - used + _of_files(group / "memory.stat"))
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:
        free = min(free, allowed - int(psutil.Process().memory_info().vms))
    return max(free, 0)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such group, or "max"
        return None


def _of_files(path: Path) -> int:
    """The part of a group's memory that holds copies of files, which the kernel frees on demand."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
