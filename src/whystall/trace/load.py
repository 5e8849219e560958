"""Loads a trace: from the cache when the file's content is known, else by reading it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from whystall.trace.cache import LEAST_RAW_BYTES, TraceCache
from whystall.trace.kineto import read_kineto
from whystall.trace.metadata import sound_text
from whystall.trace.model import Trace
from whystall.trace.scan import Progress

# gzip makes traces at most some twenty times smaller: a smaller file is not worth looking up.
_LEAST_FILE_BYTES = LEAST_RAW_BYTES // 32


def load_trace(
    path: Path, *, cache: bool = True, store: TraceCache | None = None, progress: Progress | None = None
) -> Trace:
    """The trace in ``path``. Raises `InputError` when there is none that can be read."""
    if not cache or not _is_large(path):
        return read_kineto(path, progress=progress)
    store = store or TraceCache()
    key = store.key(path)
    known = store.read(key, sound_text(path.name))
    if known is not None:
        return known
    trace = read_kineto(path, progress=progress)
    problem = store.write(key, trace)
    if problem is None:
        return trace
    source = dataclasses.replace(trace.source, warnings=(*trace.source.warnings, problem))
    return dataclasses.replace(trace, source=source)


def _is_large(path: Path) -> bool:
    try:
        return path.stat().st_size >= _LEAST_FILE_BYTES
    except OSError:
        return False
