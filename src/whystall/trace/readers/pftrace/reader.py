"""Reads the Perfetto traces that PyTorch's profiler writes under names that hold ``.pftrace``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from whystall._native import Scanner
from whystall.trace.errors import InputError
from whystall.trace.files import Head, Limits, Progress, contents, most_parts
from whystall.trace.readers.kineto.reader import recording_of
from whystall.trace.readers.kineto.scan import KEPT_METADATA, Scan
from whystall.trace.readers.pftrace.events import Events, Found
from whystall.trace.readers.protobuf import BYTES, VARINT, Field, WireError, fields
from whystall.trace.readers.reader import RawTrace

# The whole file is held at once, unpacked.
_MOST_BYTES: Final = 4 << 30
# An event of the host takes two packets of some fifty bytes: no trace that is read holds more.
_MOST_PACKETS: Final = 1 << 26
_PIECE_BYTES: Final = 1 << 20
_PACKET: Final = 1
_TIME, _SEQUENCE, _TRACK, _TRACK_ID = 8, 10, 60, 1
_LARGEST_FIELD: Final = 2000
_JOB: Final = ("device_events", "operators", "runtime_calls", "annotations", "python_functions")


class PftraceReader:
    """Perfetto traces of PyTorch's profiler."""

    name = "pftrace"
    version = 2
    describes = "Perfetto traces of the PyTorch profiler (*.pftrace)"
    suffixes = (".pftrace", ".pftrace.gz")

    def knows(self, head: Head) -> bool:
        """Whether the file begins with a packet: one of a sequence, with a time, or one that describes a track."""
        content = head.content
        try:
            packet = next(fields(content, 0, len(content)))
            parts = list(fields(content, packet.value, packet.end))
        except (WireError, StopIteration):
            return False
        followed = content[packet.end : packet.end + 1] in {b"", b"\n"}
        numbers = {part.number for part in parts if part.wire == VARINT}
        plain = (packet.number, packet.wire) == (_PACKET, BYTES) and all(part.number < _LARGEST_FIELD for part in parts)
        return plain and followed and ({_TIME, _SEQUENCE} <= numbers or any(_is_track(content, part) for part in parts))

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        """The recording in a file. Raises `InputError` where it holds none."""
        data, warnings = contents(path, _MOST_BYTES, limits, progress)
        events = Events(data, most_parts(path, limits, _MOST_PACKETS))
        scanner = Scanner(KEPT_METADATA, limits.events, limits.value_bytes)
        _feed(scanner, events)
        found = events.found
        notes = [*warnings, *_notes(found)]
        if scanner.counts()["over_limit"]:
            notes.append(f"reading stopped after {limits.events:,} events, the limit")
        raw = recording_of(Scan(scanner, len(data), found.damage is not None or found.full, tuple(notes)))
        if not any(len(raw.tables[name]) for name in _JOB if name in raw.tables) and not raw.quarantined:
            why = f" ({found.damage})" if found.damage else ""
            raise InputError(f"{path.name} is a Perfetto trace that holds no event of a job of PyTorch{why}")
        return (raw,)


def _is_track(content: bytes, part: Field) -> bool:
    if (part.number, part.wire) != (_TRACK, BYTES):
        return False
    first = next(fields(content, part.value, part.end), None)
    return first is not None and (first.number, first.wire) == (_TRACK_ID, VARINT)


def _feed(scanner: Scanner, events: Events) -> None:
    """Hands the events over as the JSON that PyTorch would have written."""
    piece = bytearray(b'{"traceEvents":[')
    first = True
    for event in events.walk():
        piece += event if first else b"," + event
        first = False
        if len(piece) > _PIECE_BYTES:
            scanner.feed(bytes(piece))
            piece.clear()
    scanner.feed(bytes(piece + b"]}"))
    scanner.finish()


def _notes(found: Found) -> list[str]:
    """Sentences on damage, and on events that were left out."""
    notes = []
    if found.damage:
        notes.append(f"the file is damaged or ends early ({found.damage}): what could be read is kept")
    if found.full:
        notes.append(f"the file holds more than is read ({found.packets:,} packets): the rest is left out")
    if found.open_slices:
        notes.append(f"{found.open_slices:,} events of the host have no end in the file: they are left out")
    if found.untimed:
        notes.append(f"{found.untimed:,} events were left out: their times cannot be true")
    if found.undescribed:
        notes.append(
            f"{found.undescribed:,} values of counters were left out: the file does not say what they count on which "
            "device"
        )
    if found.other_clocks:
        notes.append(f"{found.other_clocks:,} events were left out: their times are on a clock that is not the trace's")
    if found.compressed:
        notes.append(f"{found.compressed:,} packets are packed, as PyTorch packs none: they were not read")
    return notes
