"""A cache of parsed traces: Arrow IPC files, keyed by the file's content, the reader and this schema's version.

An entry is a folder that appears atomically. An entry that does not fit (another version, another content, another
user's, a link, damaged) is ignored. Nothing in it is executed. A cache that cannot be written adds a warning and never
changes the result.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import polars as pl
from isal import isal_zlib

from whystall.disk.owned import foreign, is_ours, is_own_file, make_private
from whystall.disk.reading import content, opened
from whystall.json_text import NotJsonError, parse_json
from whystall.trace.fingerprint import digest_of
from whystall.trace.metadata import Metadata
from whystall.trace.model import TABLES, Source, Trace
from whystall.trace.readers.reader import Reader
from whystall.trace.together import whole_of

# Raise whenever tables, columns or their meaning change.
SCHEMA_VERSION: Final = 10
# Reading a smaller file takes no longer than looking it up.
LEAST_RAW_BYTES: Final = 32 << 20
LARGEST_BYTES: Final = 4 << 30
_HOST_ORDER: Final = "host_order"
_FILES: Final = (*TABLES, _HOST_ORDER)
_STAGING: Final = ".writing-"
_ABANDONED_S: Final = 86_400  # files of a process that died
_DIGEST_BYTES: Final = 20
_ENTRY: Final = re.compile(r"[0-9a-f]{40}")  # the folder holds other programs' files as well


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an entry that is not a table."""

    schema_version: int
    key: str
    """The entry's name when it was written: a copied or moved entry belongs to another file."""
    source: Source
    metadata: Metadata
    steps_from: str | None
    columns: dict[str, dict[str, str]]
    checksums: dict[str, int]


def default_folder() -> Path:
    """``$WHYSTALL_CACHE_DIR``, else ``whystall`` in the user's cache folder."""
    if chosen := os.environ.get("WHYSTALL_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whystall"


class TraceCache:
    """Parsed traces on disk."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        least_raw_bytes: int = LEAST_RAW_BYTES,
        largest_bytes: int = LARGEST_BYTES,
    ) -> None:
        self.folder = folder or default_folder()
        self._least_raw_bytes = least_raw_bytes
        self._largest_bytes = largest_bytes

    def key(self, path: Path, reader: Reader) -> str | None:
        """The entry's name: a digest of the file's bytes and of their reader, or ``None`` when they cannot be read.

        A recording in several files is digested over all of them.
        """
        try:
            digest = hashlib.sha256()
            for file in whole_of(path, [reader]).files:
                digest.update(digest_of(file))
        except OSError:
            return None
        digest.update(f"{reader.name}/{reader.version}".encode())
        return digest.hexdigest()[:40]

    def read(self, key: str | None, name: str) -> Trace | None:
        """The cached trace under ``key``, as of a file called ``name``; ``None`` when there is none to trust."""
        if key is None:
            return None
        folder = self.folder / key
        try:
            if foreign(self.folder) is not None or not is_ours(folder):
                return None
            entry = _read_entry(folder)
            if entry is None or entry.key != key:
                return None
            tables = {table: pl.read_ipc(folder / f"{table}.arrow") for table in _FILES}
            if {table: _columns(frame) for table, frame in tables.items()} != entry.columns:
                return None
            order = tables.pop(_HOST_ORDER)["order"].to_numpy()
        except (OSError, NotJsonError, pl.exceptions.PolarsError):
            return None
        with contextlib.suppress(OSError):
            os.utime(folder)
        source = Source(
            name=name,
            **{field: getattr(entry.source, field) for field in Source.__dataclass_fields__ if field != "name"},
        )
        return Trace(
            source=source,
            metadata=entry.metadata,
            steps_from=entry.steps_from,
            host_order=np.ascontiguousarray(order),
            **tables,
        )

    def write(self, key: str | None, trace: Trace) -> str | None:
        """Keeps a trace; returns a sentence when that was not possible, ``None`` otherwise."""
        if key is None or trace.source.raw_bytes < self._least_raw_bytes:
            return None
        try:
            make_private(self.folder)
            staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=self.folder))
        except OSError as error:
            return f"the cache {self.folder} cannot be written ({error.strerror}); the result is not affected"
        try:
            _write_entry(staging, trace, key)
            _put(staging, self.folder / key)
            self._evict(keep=key)
        except (OSError, pl.exceptions.PolarsError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return f"the trace could not be cached in {self.folder} ({reason}); the result is not affected"
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return None

    def _evict(self, keep: str) -> None:
        """Removes the entries that were not used for longest until the rest fits."""
        found = []
        for entry in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another process may remove it meanwhile
                used = entry.stat().st_mtime
                if entry.name.startswith(_STAGING):
                    if used < time.time() - _ABANDONED_S:
                        shutil.rmtree(entry, ignore_errors=True)
                elif entry.is_dir() and not entry.is_symlink() and _ENTRY.fullmatch(entry.name):
                    found.append(
                        (entry.name != keep, -used, entry, sum(file.stat().st_size for file in entry.iterdir()))
                    )
        total = 0
        for other, _, entry, size in sorted(found):
            total += size
            if total > self._largest_bytes and other:
                shutil.rmtree(entry, ignore_errors=True)


def _put(staging: Path, folder: Path) -> None:
    """Moves a finished entry to its place; where another process was faster, its entry is as good."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
    try:
        staging.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _read_entry(folder: Path) -> _Entry | None:
    """The entry's description, if this version wrote it and no file has changed since."""
    if not all(is_own_file(folder / name) for name in ("trace.json", *(f"{table}.arrow" for table in _FILES))):
        return None
    body = unsealed(content(folder / "trace.json"))
    if body is None:
        return None
    entry = parse_json(body, type=_Entry)
    if entry.schema_version != SCHEMA_VERSION:
        return None
    sound = all(_checksum(folder / f"{table}.arrow") == entry.checksums.get(table) for table in _FILES)
    return entry if sound else None


def sealed(body: bytes) -> bytes:
    """The content followed by its digest, which detects damage."""
    return body + _digest(body)


def unsealed(text: bytes) -> bytes | None:
    """The content of a sealed text; ``None`` where the digest does not match."""
    body, digest = text[:-_DIGEST_BYTES], text[-_DIGEST_BYTES:]
    return body if _digest(body) == digest else None


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def _checksum(path: Path) -> int:
    """CRC-32 of a file: a damaged column would be read as numbers that are wrong."""
    value = 0
    with opened(path) as file:
        while chunk := file.read(1 << 20):
            value = isal_zlib.crc32(chunk, value)
    return value


def _columns(frame: pl.DataFrame) -> dict[str, str]:
    return {name: type(dtype).__name__ for name, dtype in frame.schema.items()}


def _write_entry(folder: Path, trace: Trace, key: str) -> None:
    frames = {table: getattr(trace, table) for table in TABLES}
    frames[_HOST_ORDER] = pl.DataFrame({"order": trace.host_order})
    for table, frame in frames.items():
        frame.write_ipc(folder / f"{table}.arrow", compression="zstd")
    entry = _Entry(
        schema_version=SCHEMA_VERSION,
        key=key,
        source=trace.source,
        metadata=trace.metadata,
        steps_from=trace.steps_from,
        columns={table: _columns(frame) for table, frame in frames.items()},
        checksums={table: _checksum(folder / f"{table}.arrow") for table in frames},
    )
    (folder / "trace.json").write_bytes(sealed(msgspec.json.encode(entry)))
