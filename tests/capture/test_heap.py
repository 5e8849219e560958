"""glibc's heap: what is in use of it is exact, and what is free goes back."""

from __future__ import annotations

import ctypes

import pytest

from whystall.capture.heap import HeapInUse, give_back_free_memory
from whystall.capture.samples import ThreadCounters

libc = ctypes.CDLL(None)
if not hasattr(libc, "mallinfo2"):
    pytest.skip("the C library is not glibc from 2.33 on", allow_module_level=True)
libc.malloc.restype = ctypes.c_void_p
PIECE, PIECES = 4000, 20_000


def pieces() -> list[ctypes.c_void_p]:
    """80 MB in small pieces, written to."""
    found = []
    for _ in range(PIECES):
        at = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(PIECE)))
        ctypes.memset(at, 1, PIECE)
        found.append(at)
    return found


def test_what_is_asked_for_and_not_freed_is_in_use_and_what_is_free_goes_back() -> None:
    resident = ThreadCounters().rss_kib
    before = HeapInUse().kib()
    held = pieces()
    between = HeapInUse().kib()
    assert before is not None
    assert between is not None
    assert between - before == pytest.approx(PIECE * PIECES / 1024, rel=0.02)
    kept, freed = held[::50], [at for number, at in enumerate(held) if number % 50]
    for at in freed:
        libc.free(at)
    after = HeapInUse().kib()
    assert after is not None
    assert after - before == pytest.approx(PIECE * PIECES / 50 / 1024, rel=0.3)
    # A piece in fifty keeps the heap from shrinking by itself.
    full = resident()
    give_back_free_memory()
    trimmed = resident()
    assert full is not None
    assert trimmed is not None
    assert full - trimmed > 0.7 * PIECE * PIECES / 1024
    for at in kept:
        libc.free(at)


def test_it_is_not_asked_again_until_asking_costs_nothing() -> None:
    heap = HeapInUse()
    asked = [heap.kib() for _ in range(100)]
    assert asked[0] is not None
    assert asked.count(None) > 80
