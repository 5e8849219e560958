"""The schema of a samples file.

A head, then a row per step (``[``) and now and then a line of the machine or of stacks (``{``).
"""

from __future__ import annotations

from typing import Final

SCHEMA: Final = "whystall.samples/1"

# Microseconds unless a name says otherwise. The kernel's counters (cpu_us to queued_us, rss_kib) are read every ten
# milliseconds: a shorter step includes the steps since the last reading. heap_kib, the memory that the process's
# allocator has given out, is read less often.
STEP_COLUMNS: Final = (
    "step",
    "end_us",
    "duration_us",
    "input_us",
    "forward_us",
    "backward_us",
    "optimizer_us",
    "save_us",
    "gc_us",
    "cpu_us",
    "voluntary_switches",
    "involuntary_switches",
    "minor_faults",
    "major_faults",
    "blocks_read",
    "blocks_written",
    "queued_us",
    "device_us",
    "rss_kib",
    "heap_kib",
    "flags",
)
NEEDED_COLUMNS: Final = frozenset(("step", "duration_us", "flags"))
"""Without these a reader can do nothing; others may be missing in files of other versions."""

PROFILED: Final = 1
"""The flag of a step while which the profiler was recording."""
LOOKED_AT: Final = 4
"""The flag of a step whose calls were examined: its time is not typical, its memory is."""
DISTURBED: Final = PROFILED | LOOKED_AT
"""Either: such a step's time is not the job's."""
SKIPPED: Final = 2
"""The flag of a step whose optimizer was skipped, by a gradient scaler that found infinities."""

Kinds = dict[str, type[int] | type[str]]

WORKER: Final[Kinds] = {"pid": int, "state": str, "ticks": int}
"""A row of ``children`` and ``threads``: a process or thread, its state letter, the CPU ticks that it has used."""
TICKS: Final[Kinds] = {"busy_ticks": int, "own_ticks": int}
"""The row ``cpu_ticks``: ticks in which the machine's cores were busy, and the job's own among them."""
TICKS_PER_S: Final = 100
"""The kernel's USER_HZ, which is 100 on every architecture that PyTorch runs on."""
PLACE: Final[Kinds] = {
    "part": str,
    "file": str,
    "line": int,
    "function": str,
    "text": str,
    "leaf": str,
    "count": int,
}
"""A row of ``stacks`` and ``beside``.

Part of the step, line, innermost function as ``module:name``, how often it was found.
"""
ALLOCATOR: Final = ("allocated", "reserved", "peak_allocated", "inactive_split", "retries", "ooms")
"""Fields of torch's allocator on each device: bytes, and counts of retries and failures."""

BEFORE: Final = "(python before)"
"""In place of the innermost function: the look waited for the lock, and Python ended just before this line."""
ENGINE: Final = "torch.autograd.graph:_engine_run_backward"
"""The innermost function of a thread that is in its backward pass (torch 2.2 and later)."""
CALLED: Final = "(a call)"
"""In place of the innermost function: no thread held the lock, so that the line was in a call that needs none."""


MOST_US: Final = 1 << 50
"""Upper limit of a step's numbers: as nanoseconds, added to a time, they fit 64 bits."""
MOST_UNIX_NS: Final = 1 << 62
MOST_RANK: Final = 1 << 31


def unix_ns(value: object) -> int:
    """A time in a file, 0 for an invalid one.

    >>> unix_ns(1_800_000_000_000_000_000), unix_ns(None), unix_ns(-1)
    (1800000000000000000, 0, 0)
    """
    return value if type(value) is int and 0 <= value < MOST_UNIX_NS else 0
