"""Scans a large file in parts, on all cores, and joins them: the same columns as one scan from its beginning.

In sound JSON, `{"ph"` after a comma begins an object of a list: a quote inside a text is escaped. The scan of the part
before shows whether that list is the list of events. If it is not, or if anything is unsound, the file has to be
scanned from its beginning, by one scanner.

A part's scanner is used again once its part is joined: it keeps its memory, and its new knowledge is joined only once.
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

PART_BYTES: Final = 4 << 20
_BORDER: Final = re.compile(rb',\s*(\{\s*"ph"\s*:)')
_SEARCHED_BYTES: Final = (8 * 1024, 256 * 1024)  # most events are short
# The context of a scanner's first byte (`Begins` of scanner.hpp).
_DOCUMENT, _EVENTS_OF_OBJECT, _EVENTS_OF_ARRAY = 0, 1, 2

NewScanner = Callable[[int], Scanner]
"""Makes a scanner for the context of its first byte."""


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
                part = new(begins) if len(waiting) <= cores else _joined(whole, waiting, size, progress)
                if part is None:
                    return None
                waiting.append((end, pool.submit(_part, descriptor, begin, end, part)))
            while waiting:
                if _joined(whole, waiting, size, progress) is None:
                    return None
        finally:
            for _, scanned in waiting:
                scanned.cancel()
    return whole if whole.counts()["closed"] else None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _borders(descriptor: int, size: int, part_bytes: int) -> Iterator[tuple[int, int]]:
    """Where the parts begin and end; the last one ends with the file."""

    def near() -> Iterator[int]:
        yield 0
        for wanted in range(part_bytes, size, part_bytes):
            searched = (_BORDER.search(os.pread(descriptor, count, wanted)) for count in _SEARCHED_BYTES)
            found = next(filter(None, searched), None)
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


def _joined(
    whole: Scanner, waiting: deque[tuple[int, Future[Scanner]]], size: int, progress: Progress | None
) -> Scanner | None:
    """The scanner of the next part, free for another once that part is joined; None where it does not join."""
    end, scanned = waiting.popleft()
    part = scanned.result()
    if not whole.take_over(part):
        return None
    if progress is not None:
        progress(end, size)
    return part
