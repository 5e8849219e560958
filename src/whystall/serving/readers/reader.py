"""The interface of a reader, and reading by lines or at once with bounds that hold for every format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from whystall.serving.records import Part
from whystall.trace.errors import InputError
from whystall.trace.files import Limits, contents, gunzipped, is_gzip, opened

__all__ = ["ServingReader", "Source", "nanoseconds"]

_MOST_BYTES: Final = 512 << 20  # of a file that is read at once: 100,000 requests of 1,000 tokens have about 250 MB
_LONGEST_LINE: Final = 1 << 20
_PIECE: Final = 1 << 18
_LONGEST_NS: Final = 4 * 10**18  # wall clocks until 2096: a larger time is no measurement, and needs more bits


class ServingReader(Protocol):
    """Reads one format."""

    @property
    def kind(self) -> str:
        """The format in words, as a report names it."""

    def recognizes(self, head: bytes) -> bool:
        """Whether a file with this head has the format."""

    def read(self, source: Source) -> Part:
        """The file's content. Raises `InputError` where it is damaged beyond use."""


@dataclass(slots=True)
class Source:
    """A file that is read: its text at once or by lines, within ``limits``; ``notes`` collects sentences on damage."""

    path: Path
    limits: Limits
    notes: list[str]

    def whole(self) -> bytes:
        """The file, unpacked. Raises `InputError` where it is too large."""
        body, damage = contents(self.path, _MOST_BYTES, self.limits, None)
        self.notes += damage
        return body

    def lines(self) -> Iterator[bytes]:
        """The lines, unpacked. A line longer than a MiB is left out, and the reading ends at the limit of bytes."""
        rest, skipping = b"", False
        for piece in self._pieces():
            *ended, rest = (rest + piece).split(b"\n")
            for line in ended:
                if not skipping:
                    yield line
                skipping = False
            if len(rest) > _LONGEST_LINE:
                rest, skipping = b"", True
        if rest and not skipping:
            yield rest

    def _pieces(self) -> Iterator[bytes]:
        damage: list[str] = []
        done = 0
        with opened(self.path) as (file, size):
            packed = is_gzip(file)
            most = max(self.limits.unpacked_times * size, self.limits.unpacked_bytes)
            most = min(self.limits.raw_bytes, most) if packed else self.limits.raw_bytes
            for piece in gunzipped(file, damage) if packed else iter(lambda: file.read(_PIECE), b""):
                done += len(piece)
                if done > most:
                    raise InputError(f"{self.path.name} holds more than is read ({most:,} bytes)")
                yield piece
        self.notes += damage


def nanoseconds(seconds: float) -> int:
    """Seconds as whole nanoseconds; 0 for a number that is no time.

    >>> nanoseconds(0.0015), nanoseconds(float("nan")), nanoseconds(float("inf"))
    (1500000, 0, 0)
    """
    if seconds != seconds or abs(seconds) * 1e9 > _LONGEST_NS:  # noqa: PLR0124 - NaN differs from itself
        return 0
    return round(seconds * 1e9)
