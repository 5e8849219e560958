"""Opens recorded files for readers of any format, and returns the head that identifies a file's format.

Gzip is recognised by content and unpacked as a stream: neither the file nor its text is ever held whole. Damage ends
the reading, not the result.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from isal import igzip_lib

from whystall.disk import reading
from whystall.trace.errors import InputError

Progress = Callable[[int, int | None], None]
"""Called with the bytes read so far and the file's size."""

CHUNK_BYTES: Final = 256 * 1024
HEAD_BYTES: Final = 64 * 1024
_LARGE_CHUNK_BYTES: Final = 1 << 20
# `Limits.unpacked_times` of a file of two bytes an event.
_LEAST_PACKED: Final = 400
_FEW_PARTS: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31  # zlib's largest window, with a gzip header
_LITTLE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on reading, so that a hostile file cannot take the machine.

    ``value_bytes`` bounds one event or one metadata value, the rest one file. ``unpacked_times`` is the largest ratio
    of a packed file's content to its size, from ``unpacked_bytes`` on: recordings have 10 to 60, a decompression bomb a
    thousand.
    """

    raw_bytes: int = 256 << 30
    unpacked_times: int = 200
    unpacked_bytes: int = 1 << 30
    events: int = 1 << 31
    value_bytes: int = 16 << 20


NO_LIMITS: Final = Limits(raw_bytes=1 << 62, unpacked_times=1 << 31, events=1 << 31)
"""For a trusted file: only the size of one value stays bounded."""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file: its first bytes, unpacked where it is gzip. To read further, open ``path``."""

    path: Path
    content: bytes


def head_of(path: Path) -> Head:
    """The head of a file. Raises `InputError` when it cannot be opened or is empty."""
    damage: list[str] = []
    content = b""
    with opened(path) as (file, _):
        pieces = gunzipped(file, damage) if is_gzip(file) else iter(lambda: file.read(HEAD_BYTES), b"")
        for piece in pieces:
            content += piece
            if len(content) >= HEAD_BYTES:
                break
    if not content:
        raise InputError(f"{path.name} is empty{': ' + damage[0] if damage else ''}")
    return Head(path, content[:HEAD_BYTES])


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """The open file and its size. Raises `InputError` where it cannot be opened, and where reading it fails."""
    try:
        with reading.opened(path, buffering=0) as file:
            yield file, os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a trace") from None
    except PermissionError:
        raise InputError(f"{path}: permission denied") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def is_gzip(file: BinaryIO) -> bool:
    """Whether the file begins with gzip's first bytes; the file stands at its beginning afterwards."""
    found = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    file.seek(0)
    return found


def most_parts(path: Path, limits: Limits, most: int) -> int:
    """The largest number of events that a file read at once may hold: ``most``, or fewer for a small file.

    However well a recording packs, an event takes more than two bytes of the file.
    """
    told = path.stat().st_size * limits.unpacked_times // _LEAST_PACKED
    return min(most, max(_FEW_PARTS, told))


def contents(path: Path, most: int, limits: Limits, progress: Progress | None) -> tuple[bytes, list[str]]:
    """A whole file, unpacked, and a sentence on damage of its packing: for formats that are read at once.

    Raises `InputError` where it holds more than ``most`` bytes, or than ``limits`` allow.
    """
    warnings: list[str] = []
    whole = bytearray()
    with opened(path) as (file, size):
        packed = is_gzip(file)
        most = min(limits.raw_bytes, most)
        if packed:
            most = min(most, max(limits.unpacked_times * size, limits.unpacked_bytes))
        pieces = gunzipped(file, warnings) if packed else iter(lambda: file.read(_LARGE_CHUNK_BYTES), b"")
        for piece in pieces:
            whole += piece
            if progress is not None:
                progress(file.tell(), size)
            if len(whole) > most:
                raise InputError(f"{path.name} holds more than what is read ({most:,} bytes)")
    return bytes(whole), warnings


def gunzipped(file: BinaryIO, warnings: list[str]) -> Iterator[bytes]:
    """The pieces that a gzip file unpacks to, up to its end or its damage, on which ``warnings`` gets a sentence."""
    done = 0
    try:
        for piece in _gunzip(iter(lambda: file.read(CHUNK_BYTES), b""), warnings):
            done += len(piece)
            yield piece
    except igzip_lib.error as error:  # type: ignore[misc]  # the stub does not say that it is an exception
        warnings.append(f"the gzip stream is damaged ({error}): everything before the damage is kept")
        yield from _salvaged(file, done)


def _gunzip(pieces: Iterator[bytes], warnings: list[str]) -> Iterator[bytes]:
    """The decompressed stream; members may follow each other. Raises ``igzip_lib.error`` where it is damaged."""
    inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    kept = b""  # of a piece that ended between two members
    for piece in pieces:
        pending, kept = kept + piece, b""
        while True:
            if inflater.eof:
                pending = pending.lstrip(b"\0")  # tapes and block devices pad with zeros
                if len(pending) < len(_GZIP_MAGIC):
                    kept = pending
                    break
                if not pending.startswith(_GZIP_MAGIC):
                    warnings.append("what follows the end of the gzip stream is no gzip: it was not read")
                    return
                inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
            out = inflater.decompress(pending, CHUNK_BYTES)
            pending = inflater.unused_data if inflater.eof else b""
            if out:
                yield out
            if inflater.needs_input or (inflater.eof and not pending):
                break
    if not inflater.eof:
        warnings.append("the gzip stream ends early: everything before its end is kept")


def _salvaged(file: BinaryIO, skip: int) -> Iterator[bytes]:
    """The readable content of a damaged stream after its first ``skip`` bytes and before the damage.

    A decompressor that finds damage discards the output of that call, so each call produces little output. The standard
    library's decompressor can bound the output of a call.
    """
    file.seek(0)
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    done = 0
    pending = b""
    with contextlib.suppress(zlib.error):
        while True:
            if inflater.eof:
                pending = pending.lstrip(b"\0")
                inflater = zlib.decompressobj(_GZIP_WINDOW) if pending else inflater
            pending = pending or file.read(CHUNK_BYTES)
            if not pending:
                return
            out = inflater.decompress(pending, min(CHUNK_BYTES, skip - done) if done < skip else _LITTLE_BYTES)
            pending = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            done += len(out)
            if done > skip:
                yield out
