"""Scans a large file in parts, on all cores, and joins what they hold: the same columns as one scan from its beginning.

In sound JSON, `{"ph"` after a comma begins an object of a list: a quote inside a text is escaped. Whether that list is
the list of events shows once the part before it is scanned. Where it is not, or where anything is unsound, the file has
to be scanned from its beginning, by one scanner.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Final

from whystall._native import Scanner
from whystall.trace.files import CHUNK_BYTES, Progress

PART_BYTES: Final = 16 << 20
_BORDER: Final = re.compile(rb',\s*(\{\s*"ph"\s*:)')
_SEARCHED_BYTES: Final = 256 * 1024
# What a scanner's first byte belongs to (`Begins` of scanner.hpp).
_DOCUMENT, _EVENTS_OF_OBJECT, _EVENTS_OF_ARRAY = 0, 1, 2

NewScanner = Callable[[int], Scanner]
"""A scanner, given what its first byte belongs to."""


def scanned_in_parts(
    descriptor: int,
    size: int,
    new: NewScanner,
    progress: Progress | None,
    *,
    part_bytes: int = PART_BYTES,
    cores: int | None = None,
) -> Scanner | None:
    """The finished scanner of a file of ``size`` bytes; None where one scanner has to read it from its beginning."""
    cores = cores or _cores()
    if cores == 1 or size < 2 * part_bytes:
        return None
    borders = _borders(descriptor, size, part_bytes)
    first = next(borders)
    whole = _part(descriptor, *first, new(_DOCUMENT))
    begins = _EVENTS_OF_ARRAY if whole.counts()["top_is_array"] else _EVENTS_OF_OBJECT
    with ThreadPoolExecutor(cores) as pool:
        waiting: deque[tuple[int, Future[Scanner]]] = deque()
        try:
            for begin, end in borders:
                waiting.append((end, pool.submit(_part, descriptor, begin, end, new(begins))))
                if len(waiting) > cores and not _joined(whole, waiting, size, progress):
                    return None
            while waiting:
                if not _joined(whole, waiting, size, progress):
                    return None
        finally:
            for _, part in waiting:
                part.cancel()
    return whole if whole.counts()["closed"] else None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _borders(descriptor: int, size: int, part_bytes: int) -> Iterator[tuple[int, int]]:
    """Where the parts begin and end; the last one ends with the file."""

    def near() -> Iterator[int]:
        yield 0
        for wanted in range(part_bytes, size, part_bytes):
            found = _BORDER.search(os.pread(descriptor, _SEARCHED_BYTES, wanted))
            if found is not None:
                yield wanted + found.start(1)
        yield size

    return pairwise(near())


def _part(descriptor: int, begin: int, end: int, scanner: Scanner) -> Scanner:
    while begin < end:
        count = scanner.read(descriptor, min(CHUNK_BYTES, end - begin), begin)
        if count == 0:
            break  # the file has become shorter
        begin += count
    return scanner


def _joined(whole: Scanner, waiting: deque[tuple[int, Future[Scanner]]], size: int, progress: Progress | None) -> bool:
    """Whether the next part could be joined to what there is."""
    end, part = waiting.popleft()
    if not whole.take_over(part.result()):
        return False
    if progress is not None:
        progress(end, size)
    return True
