"""Feeds a file to the native scanner, piece by piece, and reports its problems."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from whystall._native import Scanner
from whystall.run_folder.layout import WHOLE_STEPS
from whystall.trace.errors import InputError
from whystall.trace.files import CHUNK_BYTES, Limits, Progress, gunzipped, is_gzip, opened
from whystall.trace.readers.kineto.parts import scanned_in_parts
from whystall.trace.room import Room

if TYPE_CHECKING:
    from whystall._native._ext import Counts

# Top-level metadata that a report may use. The scanner skips everything else: published traces do carry environment
# variables, command lines, host and user names, and tokens.
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
    WHOLE_STEPS,
)


_LOOKED_AT_EVERY: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Scan:
    """A scanned file: the scanner that holds its columns, sizes, and damage in plain sentences."""

    scanner: Scanner
    raw_bytes: int
    truncated: bool
    warnings: tuple[str, ...]
    room: Room | None = None


class Feed(Protocol):
    """Feeds a scanner the parts of an open file to read."""

    def __call__(
        self, scanner: Scanner, file: BinaryIO, *, packed: bool, limits: Limits, warnings: list[str]
    ) -> Iterator[int]:
        """Yields how many bytes of JSON each piece held; ``packed``: the file is gzip."""


def scan_file(
    path: Path, *, limits: Limits | None = None, progress: Progress | None = None, feed: Feed | None = None
) -> Scan:
    """The scanned contents of a trace file, as far as they can be read, without parts that ``feed`` leaves out.

    ``progress`` is called with the bytes read so far and the file's size. Raises `InputError` when the file cannot be
    opened or holds no trace at all.
    """
    limits = limits or Limits()
    warnings: list[str] = []
    room = Room(path.name)
    with opened(path) as (file, size):
        scanner = _scanned(file, size, limits, warnings, progress, feed, room)
    counts = scanner.counts()
    if not counts["is_json"]:
        raise InputError(f"{path.name} is not JSON: a PyTorch trace starts with '{{' or '['")
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
    return Scan(scanner, counts["bytes"], truncated, tuple(warnings), room)


def _holds_something(counts: Counts) -> bool:
    return counts["not_objects"] + counts["without_phase"] + counts["broken"] > 0


def _is_open(scanner: Scanner) -> bool:
    """Whether a top-level object never ended (a top-level array may end without its bracket)."""
    return not scanner.counts()["top_is_array"]


def _scanned(
    file: BinaryIO,
    size: int,
    limits: Limits,
    warnings: list[str],
    progress: Progress | None,
    feed: Feed | None,
    room: Room,
) -> Scanner:
    new = functools.partial(Scanner, KEPT_METADATA, limits.events, limits.value_bytes)
    packed = is_gzip(file)
    if not packed and feed is None and size <= limits.raw_bytes:
        whole = scanned_in_parts(file.fileno(), size, new, progress)
        if whole is not None:
            return whole
    scanner = new()
    counts = (feed or _feed_all)(scanner, file, packed=packed, limits=limits, warnings=warnings)
    _feed(_within(room, scanner, counts), file, size, limits, warnings, progress)
    scanner.finish()
    return scanner


def _within(room: Room, scanner: Scanner, counts: Iterator[int]) -> Iterator[int]:
    """The same counts, as long as there is memory for the events so far."""
    since = 0
    for count in counts:
        since += count
        if since >= _LOOKED_AT_EVERY:
            since = 0
            room.require(scanner.counts()["events"])
        yield count


def _feed(
    counts: Iterator[int],
    file: BinaryIO,
    size: int,
    limits: Limits,
    warnings: list[str],
    progress: Progress | None,
) -> None:
    raw_bytes = 0
    most = max(limits.unpacked_times * size, limits.unpacked_bytes)
    for count in counts:
        raw_bytes += count
        if progress is not None:
            progress(file.tell(), size)
        if raw_bytes > most:
            warnings.append(
                f"reading stopped after {raw_bytes:,} bytes of JSON: the file of {size:,} bytes holds more than "
                f"{limits.unpacked_times} times its size, as no recording does (--no-limits reads all of it)"
            )
            return
        if raw_bytes > limits.raw_bytes:
            warnings.append(f"reading stopped after {limits.raw_bytes:,} bytes of JSON, the limit")
            return


def _feed_all(scanner: Scanner, file: BinaryIO, *, packed: bool, limits: Limits, warnings: list[str]) -> Iterator[int]:
    del limits
    for piece in gunzipped(file, warnings) if packed else ():
        scanner.feed(piece)
        yield len(piece)
    while not packed and (count := scanner.read(file.fileno(), CHUNK_BYTES)):
        yield count
