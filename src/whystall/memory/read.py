"""Reads memory snapshots of torch, of any version, as they stream in: a file of a gigabyte never becomes a tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall._native import SnapshotReader
from whystall.errors import InputError
from whystall.memory.snapshot import (
    HOST,
    MISSING,
    Annotation,
    Blocks,
    DeviceRecord,
    Events,
    Frame,
    Frames,
    Segments,
    Snapshot,
    State,
)
from whystall.trace.files import Limits, gunzipped, is_gzip, opened
from whystall.vocabulary.pickles import REFUSED

__all__ = ["is_pickle", "read_snapshot"]

_CHUNK: Final = 1 << 20
_PROTOCOL: Final = 0x80  # the first instruction of every pickle since protocol 2
_LARGEST: Final = 1 << 44  # bytes
_LATEST_US: Final = 1 << 53
Column = NDArray[np.signedinteger[Any]]
_MOST_ANNOTATIONS: Final = 1_000_000


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins so is a pickle."""
    return len(head) > 1 and head[0] == _PROTOCOL and head[1] <= 5


def read_snapshot(path: Path, limits: Limits | None = None) -> Snapshot:
    """The snapshot in a file. Raises ``InputError`` where there is none, or where reading it would run something."""
    reader, warnings = SnapshotReader(), list[str]()
    limits = limits or Limits()
    with opened(path) as (file, size):
        if is_gzip(file):
            most = min(limits.raw_bytes, max(limits.unpacked_times * size, limits.unpacked_bytes))
            unpacked = 0
            for piece in gunzipped(file, warnings):
                reader.feed(piece)
                unpacked += len(piece)
                if unpacked > most:
                    raise InputError(f"{path.name} unpacks to more than what is read ({most:,} bytes)")
                if reader.failure() is not None:
                    break
        else:
            while reader.failure() is None and not reader.done() and reader.read(file.fileno(), _CHUNK):
                pass
    reader.finish()
    warnings += _failure(path, reader)
    if not reader.is_snapshot():
        raise InputError(f"{path.name} is a pickle, but no memory snapshot: it has neither segments nor device_traces")
    return _assembled(path, reader, warnings)


def _failure(path: Path, reader: SnapshotReader) -> Iterator[str]:
    """A sentence where the file was cut off. Raises ``InputError`` for all else that stopped the reading."""
    failed = reader.failure()
    if failed is None:
        return
    kind, what, instruction, place = failed
    if kind == "cut" and reader.is_snapshot():
        yield f"{path.name} was cut off at byte {place:,}: what was written after that is not known"
        return
    if kind == "refused":
        told = REFUSED.get(instruction)
        if told is not None:
            raise InputError(f"{path.name} {told} (at byte {place:,}), which no snapshot does: it was not run")
        what = f"unexpected instruction {instruction:#04x}"
    raise InputError(f"{path.name} is damaged, or no memory snapshot: {what} (at byte {place:,})")


def _assembled(path: Path, reader: SnapshotReader, warnings: list[str]) -> Snapshot:
    texts = tuple(reader.texts())
    pieces = _Pieces(reader)
    annotations = _annotations(reader, texts)
    settings = reader.plain("allocator_settings")
    devices = list(_devices(pieces, "segments", "device_traces", annotations))
    host = list(_devices(pieces, "host_segments", "host_traces", {}, host=True))
    return Snapshot(
        name=path.name,
        devices=tuple(devices + host),
        frames=_frames(reader.frames(), texts),
        texts=texts,
        settings=settings if isinstance(settings, dict) else {},
        warnings=tuple(warnings),
    )


class _Pieces:
    """The native reader's tables, taken out of it once."""

    def __init__(self, reader: SnapshotReader) -> None:
        self.reader = reader
        self.events = reader.events()
        self.segments = reader.segments()
        self.blocks = reader.blocks()


def _devices(
    pieces: _Pieces, segments: str, traces: str, annotations: dict[int, list[Annotation]], *, host: bool = False
) -> Iterator[DeviceRecord]:
    """Each device that has segments or events."""
    rows = pieces.reader.segment_rows(segments) if not host or pieces.reader.plain(segments) else _NO_ROWS
    of: Column = np.full(len(rows), HOST) if host else _filled(pieces.segments["device"][rows], 0)
    by_trace = pieces.reader.traces(traces)
    if host:
        by_trace = [np.concatenate(by_trace)] if by_trace else []
    numbers = {int(device) for device in np.unique(of)}
    numbers |= {HOST if host else number for number, trace in enumerate(by_trace) if len(trace)}
    for device in sorted(numbers):
        index = 0 if host else device
        chosen = by_trace[index] if 0 <= index < len(by_trace) else _NO_ROWS
        part, blocks = _segments(pieces, rows[of == device])
        yield DeviceRecord(device, _events(pieces.events, chosen), part, blocks, tuple(annotations.get(device, ())))


_NO_ROWS: Final[NDArray[np.uint32]] = np.zeros(0, np.uint32)


def _filled(column: Column, value: int) -> Column:
    """The column with ``value`` for missing entries; the same column if there are none."""
    if column.dtype.itemsize < 8 or not len(column):  # too narrow for the mark of a missing entry
        return column
    missing = column == MISSING
    return np.where(missing, value, column) if missing.any() else column


def _wide(column: Column, missing: int) -> NDArray[np.int64]:
    filled: NDArray[np.int64] = _filled(column, missing).astype(np.int64)
    return filled


def _events(columns: dict[str, NDArray[Any]], rows: NDArray[np.uint32]) -> Events:
    in_order = len(rows) > 0 and int(rows[-1]) - int(rows[0]) + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all())
    chosen = slice(int(rows[0]), int(rows[-1]) + 1) if in_order else rows  # a view where that is possible

    def column(name: str, missing: int) -> Column:
        return _filled(columns[name][chosen], missing)

    return Events(
        action=columns["action"][chosen],
        address=column("address", 0),
        size=_sizes(column("size", 0)),
        stream=column("stream", 0),
        time_us=_times(columns["time"][chosen]),
        stack=column("stack", -1),
        context=column("context", -1),
        metadata=column("metadata", -1),
    )


def _sizes(size: Column) -> Column:
    """The sizes, with 0 for those that no device has."""
    odd = (size < 0) | (size > _LARGEST)
    return np.where(odd, 0, size) if odd.any() else size


def _times(time: Column) -> NDArray[np.int64] | None:
    """Times that never go back: an event without one has that of the event before it."""
    known = (time >= 0) & (time < _LATEST_US)
    if not known.any():
        return None
    time = time.astype(np.int64, copy=False)
    if not known.all():
        time = np.where(known, time, time[int(np.argmax(known))])
    return time if bool((time[1:] >= time[:-1]).all()) else np.maximum.accumulate(time)


def _segments(pieces: _Pieces, rows: NDArray[np.uint32]) -> tuple[Segments, Blocks]:
    table, blocks = pieces.segments, pieces.blocks
    begin, end = table["blocks_begin"][rows].astype(np.int64), table["blocks_end"][rows].astype(np.int64)
    counts = end - begin
    of = np.repeat(np.arange(len(rows)), counts)
    within = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = blocks["order"][np.repeat(begin, counts) + within]
    segments = Segments(
        address=_wide(table["address"][rows], 0),
        total=_sizes(_wide(table["total"][rows], 0)),
        is_large=table["kind"][rows] == 1,
        is_expandable=table["expandable"][rows] == 1,
        pool=_wide(table["pool"][rows], 0),
    )
    size = _sizes(_wide(blocks["size"][chosen], 0))
    state = blocks["state"][chosen].astype(np.int64)
    requested = _wide(blocks["requested"][chosen], -1)
    requested = np.where(state == State.INACTIVE, 0, np.where((requested < 0) | (requested > size), size, requested))
    address = blocks["address"][chosen].astype(np.int64)
    reckoned = segments.address[of] + _before_in_group(size, counts)
    return segments, Blocks(
        segment=of,
        address=np.where(address == MISSING, reckoned, address),
        size=size,
        requested=requested,
        state=state,
        stack=blocks["stack"][chosen].astype(np.int64),
    )


def _before_in_group(size: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of the sizes before each one in its own group: old snapshots leave out a block's address."""
    before = np.append(np.cumsum(size) - size, 0)
    starts = np.cumsum(counts) - counts
    out: NDArray[np.int64] = before[:-1] - np.repeat(before[starts], counts)
    return out


def _annotations(reader: SnapshotReader, texts: tuple[str, ...]) -> dict[int, list[Annotation]]:
    """The named spans of each device, by when they begin: an end closes the latest open span of its name."""
    rows = reader.annotation_rows()[:_MOST_ANNOTATIONS]
    table = reader.annotations()
    out: dict[int, list[Annotation]] = {}
    open_: dict[tuple[int, int], list[int]] = {}
    columns = (table[name][rows].tolist() for name in ("name", "stage", "device", "time"))
    for name, stage, device, time in zip(*columns, strict=True):
        if not 0 <= time < _LATEST_US or stage < 0 or name < 0:
            continue
        spans = out.setdefault(0 if device == MISSING else device, [])
        waiting = open_.setdefault((device, name), [])
        if stage == 0:
            waiting.append(len(spans))
            spans.append(Annotation(texts[name], time, None))
        elif waiting:
            at = waiting.pop()
            spans[at] = spans[at]._replace(end_us=max(time, spans[at].start_us))
    return {device: sorted(spans, key=lambda span: span.start_us) for device, spans in out.items()}


def _frames(table: dict[str, NDArray[Any]], texts: tuple[str, ...]) -> Frames:
    def text(number: int) -> str:
        return texts[number] if 0 <= number < len(texts) else "?"

    columns = (table[name].tolist() for name in ("name", "file", "line", "origin"))
    frames = tuple(
        Frame(
            text(name),
            text(file),
            None if line == MISSING or line <= 0 else line,
            texts[origin] if origin >= 0 else None,
        )
        for name, file, line, origin in zip(*columns, strict=True)
    )
    return Frames(frames, table["stack_frames"], table["stack_ends"])
