"""The peak memory of this process; its parent's does not count, as it does in ``ru_maxrss``."""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """The high-water mark of resident memory since the program was started."""
    status = Path("/proc/self/status").read_text("ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
