"""Functions that workers are given in tests: they find this file on the path."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def reversed_bytes(item: bytes) -> bytes:
    return item[::-1]


def process(item: bytes) -> bytes:
    return str(os.getpid()).encode()


def fails(item: bytes) -> bytes:
    if item == b"bad":
        raise ValueError("this one is bad")
    return item


def dies_once(item: bytes) -> bytes:
    """Dies at the first try where the item names a file that is not there yet."""
    mark = Path(item.decode())
    if mark.name.startswith("dies") and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def dies_always(item: bytes) -> bytes:
    if item == b"bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def out_of_memory(item: bytes) -> bytes:
    if item == b"bad":
        raise MemoryError
    return item


def overlapping(item: bytes) -> bytes:
    """How many were at work at once when this one was: each puts a file into a folder and counts."""
    folder = Path(item.decode())
    mine = folder / f"{os.getpid()}"
    mine.touch()
    try:
        for _ in range(200_000):
            pass
        return str(len(list(folder.iterdir()))).encode()
    finally:
        mine.unlink()


def prints(item: bytes) -> bytes:
    print("to standard output", flush=True)
    return item
