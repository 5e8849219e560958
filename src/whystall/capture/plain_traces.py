"""Searches the plain text of a trace (Kineto's JSON), which may be larger than what is read at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_OVERLAP: Final = 4096
_CHUNK: Final = 1 << 20


def stretches(plain: Path) -> Iterator[tuple[bytes, int]]:
    """The pieces of a file, each behind the last bytes of the piece before, and the number of these bytes."""
    before = b""
    with plain.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield before + chunk, len(before)
            before = chunk[-_OVERLAP:]


def counted(plain: Path, texts: Sequence[bytes]) -> list[int]:
    """How often a file has each of some texts."""
    times = [0] * len(texts)
    for piece, known in stretches(plain):
        for place, text in enumerate(texts):
            times[place] += piece.count(text, max(known - len(text) + 1, 0))
    return times
