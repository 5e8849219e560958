"""Reads only a trace's collectives: about a hundredth of the bytes are parsed.

This finds who waits for whom among a thousand ranks in little more than the time that it takes to read their bytes. If
a communication kernel does not name its collective, the event that launched it may: then everything is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import polars as pl

from whystall._native import Scanner, Sieve
from whystall.trace.columns import matching
from whystall.trace.files import Head, Limits, Progress, gunzipped
from whystall.trace.readers.kineto.reader import KinetoReader, recording_of
from whystall.trace.readers.kineto.scan import scan_file
from whystall.trace.readers.reader import RawTrace

_SAYS_SO: Final = re.compile(rb'"(traceEvents|deviceProperties|distributedInfo)"|\{\s*"ph"\s*:')
# At once: an event that a piece ends in is looked at again with the next one.
_PIECE_BYTES: Final = 1 << 20


class CollectivesReader:
    """Traces of the PyTorch profiler: records of collectives, marks of steps, kernels that by name ``communicate``."""

    name = "kineto-collectives"
    version = 1
    describes = KinetoReader.describes
    suffixes = KinetoReader.suffixes

    def __init__(self, communicates: Callable[[str], bool]) -> None:
        self._communicates = communicates

    def knows(self, head: Head) -> bool:
        """Whether it is JSON whose head shows that it is a trace."""
        return KinetoReader().knows(head) and _SAYS_SO.search(head.content) is not None

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        """The recording in a file, with collectives alone where possible. Raises `InputError` when it is no trace."""
        found = recording_of(scan_file(path, limits=limits, progress=progress, feed=self._feed))
        if self._says_all(found):
            return (found,)
        return KinetoReader().read(path, limits=limits, progress=progress)

    def _says_all(self, found: RawTrace) -> bool:
        """Whether there are kernels that communicate, and each of them names its collective."""
        kernels = found.tables["device_events"]
        talk = kernels.filter(pl.Series(matching(kernels["name"], self._communicates)))
        return len(talk) > 0 and talk["collective"].null_count() == 0

    def _feed(
        self, scanner: Scanner, file: BinaryIO, *, packed: bool, limits: Limits, warnings: list[str]
    ) -> Iterator[int]:
        """Feeds the filtered parts; yields how many bytes of JSON each piece held."""
        sieve = Sieve(limits.value_bytes)
        for piece in _joined(gunzipped(file, warnings)) if packed else ():
            scanner.feed(sieve.feed(piece, self._communicates))
            yield len(piece)
        while not packed and (read := sieve.read(file.fileno(), _PIECE_BYTES, self._communicates)) is not None:
            scanner.feed(read[1])
            yield read[0]
        scanner.feed(sieve.finish())


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same in larger pieces."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= _PIECE_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)
