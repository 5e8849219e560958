"""glibc's heap in the job's process: its used part, and freeing the rest.

With another allocator preloaded glibc's holds nothing, and with another C library, or one older than 2.33, its state is
unknown.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from whystall.capture import clock

_SELDOM: Final = 400
"""Reading walks over all free pieces, 0.1 ms for some hundred: the next reading comes after this many times as long."""


class _Mallinfo2(ctypes.Structure):
    """The result of ``mallinfo2``: bytes and counts, of all arenas together."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


class HeapInUse:
    """Asks how many bytes are in use, as seldom as it costs nothing."""

    def __init__(self) -> None:
        self._ask: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
        self._next_ns = 0
        if self._ask is not None:
            self._ask.restype, self._ask.argtypes = _Mallinfo2, ()

    def kib(self) -> int | None:
        """Kibibytes that were given out and not freed, mapped ones too; ``None`` where unknown, or too soon."""
        began = clock.perf_counter_ns()
        if self._ask is None or began < self._next_ns:
            return None
        told = self._ask()
        ended = clock.perf_counter_ns()
        self._next_ns = ended + _SELDOM * (ended - began)
        return int(told.uordblks + told.hblkhd) >> 10


def give_back_free_memory() -> None:
    """Returns free pieces to the system, which glibc keeps where they are small.

    A profiler whose trace had 21 MB left 1.8 GB with the job, which hid the job's own growth as well.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
