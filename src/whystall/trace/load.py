"""Loads traces: from the cache when the file's content is known, else by the reader that knows its format."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from whystall.trace.assemble import ReaderError, assemble
from whystall.trace.cache import LEAST_RAW_BYTES, TraceCache
from whystall.trace.errors import InputError
from whystall.trace.files import Limits, Progress, head_of
from whystall.trace.metadata import sound_text
from whystall.trace.model import Trace
from whystall.trace.processes import recordings_of
from whystall.trace.readers.reader import RawTrace, Reader, Whole
from whystall.trace.readers.registry import READERS, installed_readers, reader_of
from whystall.trace.room import Room
from whystall.trace.together import whole_of

# gzip makes traces at most some twenty times smaller: a smaller file is not worth looking up.
_LEAST_FILE_BYTES = LEAST_RAW_BYTES // 32


def load_trace(
    path: Path,
    *,
    cache: bool = True,
    store: TraceCache | None = None,
    readers: Sequence[Reader] | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The trace in a file. Raises `InputError` when there is none that can be read, and when there are several."""
    found = load_traces(path, cache=cache, store=store, readers=readers, limits=limits, progress=progress)
    if len(found) > 1:
        raise InputError(
            f"{path.name} holds the recordings of {len(found)} processes: analyze it, which reads them all"
        )
    return found[0]


def load_traces(
    path: Path,
    *,
    cache: bool = True,
    store: TraceCache | None = None,
    readers: Sequence[Reader] | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> list[Trace]:
    """The traces in a file, one for each process that it recorded.

    ``readers`` are whystall's and those of installed packages unless others are given. Only a file of one process is
    cached, and none that is read with other ``limits``. Raises `InputError` when nothing can be read.
    """
    asked, failures = installed_readers() if readers is None else (readers, [])
    whole = whole_of(path, asked)
    reader = reader_of(head_of(whole.files[0]), asked, failures)
    store = store or TraceCache()
    key = store.key(whole.files[0], reader) if cache and limits is None and _is_large(whole) else None
    known = store.read(key, sound_text(whole.name))
    if known is not None:
        return [_with_warnings(known, failures)]
    traces = _read(whole, reader, limits or Limits(), progress)
    if len(traces) == 1 and (problem := store.write(key, traces[0])):
        failures.append(problem)
    return [_with_warnings(traces[0], failures), *traces[1:]]


def _read(whole: Whole, reader: Reader, limits: Limits, progress: Progress | None) -> list[Trace]:
    """A reader's output for a file, linked; any failure of the reader becomes an error message."""
    path, name, room = whole.files[0], whole.name, Room(whole.name)
    try:
        size = sum(file.stat().st_size for file in whole.files)
        traces = [
            assemble(part, name=name, file_bytes=size)
            for raw in reader.read(path, limits=limits, progress=progress)
            for part in recordings_of(_with_room(raw, room))
        ]
    except (InputError, MemoryError):
        raise
    except ReaderError as error:
        raise InputError(f"{name}: the reader {reader.name} is at fault: {error}") from error
    except Exception as error:
        if reader in READERS:
            raise
        raise InputError(f"{name}: the reader {reader.name} failed ({type(error).__name__}: {error})") from error
    if not traces:
        raise InputError(f"{name} holds no recording")
    return traces


def _with_room(raw: RawTrace, room: Room) -> RawTrace:
    """The recording, if there is memory to analyse it."""
    on_devices = raw.tables.get("device_events")
    room.require(raw.events, device_events=0 if on_devices is None else len(on_devices))
    return raw


def _with_warnings(trace: Trace, more: Sequence[str]) -> Trace:
    if not more:
        return trace
    source = dataclasses.replace(trace.source, warnings=(*trace.source.warnings, *more))
    return dataclasses.replace(trace, source=source)


def _is_large(whole: Whole) -> bool:
    try:
        return sum(file.stat().st_size for file in whole.files) >= _LEAST_FILE_BYTES
    except OSError:
        return False
