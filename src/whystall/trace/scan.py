"""Feeds a file to the native scanner, piece by piece, and says what was wrong with it.

The file is read in chunks of at most 256 KiB and, when its first bytes say so, gunzipped as a stream:
neither the file nor its text is ever held whole. Damage ends the reading, not the result.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from isal import igzip_lib

from whystall._native import Scanner
from whystall.trace.errors import InputError

if TYPE_CHECKING:
    from whystall._native._ext import Counts

Progress = Callable[[int, int | None], None]

CHUNK_BYTES: Final = 256 * 1024
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31  # zlib's largest window, with a gzip header
_LITTLE_BYTES: Final = 16

# What a report may use of the top-level metadata. Everything else (environment variables, command
# lines, host and user names, tokens: published traces do carry them) is skipped by the scanner.
KEPT_METADATA: Final = (
    "schemaVersion",
    "deviceProperties",
    "distributedInfo",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_modules",
    "with_flops",
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "hip_runtime_version",
    "hip_driver_version",
    "roctracer_version",
    "pytorch_version",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is read, so that a hostile file cannot take the machine.

    ``value_bytes`` bounds one event or one metadata value, the rest one file.
    """

    raw_bytes: int = 256 << 30
    events: int = 1 << 31
    value_bytes: int = 16 << 20


@dataclass(frozen=True, slots=True)
class Scan:
    """A scanned file: the scanner that holds its columns, sizes, and damage in plain sentences."""

    scanner: Scanner
    file_bytes: int
    raw_bytes: int
    truncated: bool
    warnings: tuple[str, ...]


def scan_file(path: Path, *, limits: Limits | None = None, progress: Progress | None = None) -> Scan:
    """The scanned contents of a trace file, as far as they can be read.

    ``progress`` is called with the bytes read so far and the file's size. Raises `InputError` when the
    file cannot be opened or holds no trace at all.
    """
    limits = limits or Limits()
    scanner = Scanner(KEPT_METADATA, limits.events, limits.value_bytes)
    warnings: list[str] = []
    with _opened(path) as (file, size):
        _feed(scanner, file, size, limits, warnings, progress)
    scanner.finish()
    counts = scanner.counts()
    if not counts["is_json"]:
        raise InputError(f"{path.name} is not JSON: a PyTorch trace starts with '{{' or '['")
    if counts["bytes"] == 0:
        raise InputError(f"{path.name} is empty{': ' + warnings[0] if warnings else ''}")
    if counts["top_is_array"] and counts["events"] == 0 and _holds_something(counts):
        raise InputError(f"{path.name} is a JSON list but no trace: it holds no trace events")
    if not counts["found_events"]:
        raise InputError(f"{path.name} is JSON but no trace: it has no 'traceEvents'")
    if counts["over_limit"]:
        warnings.append(f"reading stopped after {limits.events:,} events, the limit")
    truncated = (
        not counts["closed"] and not counts["over_limit"] and (counts["unfinished_bytes"] > 0 or _is_open(scanner))
    )
    if truncated:
        warnings.append(
            f"the file ends in the middle: everything before the break is kept ({counts['events']:,} events)"
        )
    return Scan(scanner, size, counts["bytes"], truncated, tuple(warnings))


def _holds_something(counts: Counts) -> bool:
    return counts["not_objects"] + counts["without_phase"] + counts["broken"] > 0


def _is_open(scanner: Scanner) -> bool:
    """Whether a top-level object never ended (a top-level array may end without its bracket)."""
    return not scanner.counts()["top_is_array"]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    try:
        with path.open("rb", buffering=0) as file:
            yield file, path.stat().st_size
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a trace") from None
    except PermissionError:
        raise InputError(f"{path}: permission denied") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def _feed(
    scanner: Scanner,
    file: BinaryIO,
    size: int,
    limits: Limits,
    warnings: list[str],
    progress: Progress | None,
) -> None:
    is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    file.seek(0)
    counts = _feed_gzip(scanner, file, warnings) if is_gzip else _feed_plain(scanner, file)
    raw_bytes = 0
    for count in counts:
        raw_bytes += count
        if progress is not None:
            progress(file.tell(), size)
        if raw_bytes > limits.raw_bytes:
            warnings.append(f"reading stopped after {limits.raw_bytes:,} bytes of JSON, the limit")
            return


def _feed_plain(scanner: Scanner, file: BinaryIO) -> Iterator[int]:
    """Feeds the file as it is; yields how many bytes of JSON each piece held."""
    descriptor = file.fileno()
    while count := scanner.read(descriptor, CHUNK_BYTES):
        yield count


def _feed_gzip(scanner: Scanner, file: BinaryIO, warnings: list[str]) -> Iterator[int]:
    fed = 0
    try:
        for chunk in _gunzip(iter(lambda: file.read(CHUNK_BYTES), b""), warnings):
            scanner.feed(chunk)
            fed += len(chunk)
            yield len(chunk)
    except igzip_lib.error as error:  # type: ignore[misc]  # the stub does not say that it is an exception
        warnings.append(f"the gzip stream is damaged ({error}): everything before the damage is kept")
        for chunk in _salvaged(file, fed):
            scanner.feed(chunk)
            yield len(chunk)


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
    """What a damaged stream holds between its first ``skip`` bytes and the damage.

    A decompressor that finds damage withholds what it made in the same call: here it is asked for a little
    at a time. It is the standard library's, since its calls can be bounded so.
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
