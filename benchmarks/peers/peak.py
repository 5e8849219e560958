"""What this process has used: the peak of its memory, and its CPU time."""

from __future__ import annotations

import resource
from pathlib import Path


def peak_bytes() -> int:
    """The high-water mark of resident memory since the program was started.

    Its parent's does not count, as it does in ``ru_maxrss``; nor does that of worker processes.
    """
    status = Path("/proc/self/status").read_text("ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def cpu_s() -> float:
    """Seconds of CPU so far, with those of worker processes that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
