"""A digest of the content of the recordings in a folder; their file times do not change it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Final

from whystall.disk.reading import opened
from whystall.run_folder.layout import EXPERIMENTS_JSON, RUN_JSON, rank_file
from whystall.trace.discovery import RANKS_JSON, find_traces
from whystall.trace.errors import InputError
from whystall.trace.readers.reader import Reader
from whystall.trace.readers.registry import installed_readers
from whystall.trace.together import whole_of

_READ_BESIDE: Final = frozenset({RUN_JSON, EXPERIMENTS_JSON, RANKS_JSON})
_READ_OF_RANKS: Final = frozenset({"samples", "description", "flight", "values"})
_KEPT: Final = 4096


def fingerprint(folder: Path, readers: Sequence[Reader] | None = None) -> str | None:
    """A digest of all files in a folder that an analysis of it reads: their names and their whole content.

    ``None`` where there are none.
    """
    files = sorted(set(_inputs(folder, installed_readers()[0] if readers is None else readers)))
    if not files:
        return None
    whole = hashlib.sha256()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for file, content in zip(files, threads.map(_content, files), strict=True):
            name = os.fsencode(os.path.relpath(file, folder))
            whole.update(len(name).to_bytes(8, "little") + name + content)
    return f"sha256:{whole.hexdigest()}"


def digest_of(path: Path) -> bytes:
    """The SHA-256 of a file's content. Raises `OSError` where it cannot be read.

    It is computed once for each state of the file: device, inode, size, and times (programs cannot set that of change).
    """
    return _digest(path, _state(path))


@lru_cache(_KEPT)
def _digest(path: Path, state: tuple[int, ...]) -> bytes:
    with opened(path, buffering=0) as file:
        found = hashlib.file_digest(file, "sha256").digest()
    if _state(path) != state:
        raise OSError(0, "it was written to while it was read", str(path))
    return found


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _content(path: Path) -> bytes:
    """The file's digest; for an unreadable one a mark that no content has."""
    try:
        return digest_of(path)
    except OSError as error:
        return f"unreadable: {error.errno}".encode()


def _inputs(folder: Path, readers: Sequence[Reader]) -> Iterator[Path]:
    with contextlib.suppress(InputError):
        for path in find_traces(folder, readers):
            yield from whole_of(path, readers).files
    for path in folder.iterdir():
        known = rank_file(path.name)
        if path.name in _READ_BESIDE or (known is not None and known.kind in _READ_OF_RANKS):
            yield path
