"""Finished summaries, kept in whystall's cache folder: a run that broke off resumes.

An entry is one file, whole or not there. An entry that does not fit (another version, another content's, another
user's, a link, damaged) is ignored, and nothing in it is executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from whystall.disk.owned import foreign, is_ours, make_private
from whystall.disk.reading import content
from whystall.trace.cache import SCHEMA_VERSION, sealed, unsealed

VERSION: Final = 2
"""Raise whenever a summary of the same file becomes another."""
FOLDER: Final = "summaries"
LARGEST_BYTES: Final = 1 << 30
_MOST_BYTES: Final = 64 << 20
_SUFFIX: Final = ".summary"
_STAGING: Final = ".writing-"


class SummaryCache:
    """Summaries on disk, by a key that stands for a file's content and for all that its summary depends on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def key(self, *parts: str | bytes) -> str:
        """The entry's name: a digest of ``parts`` and of the version of the code that makes summaries."""
        digest = hashlib.blake2b(f"{VERSION}/{SCHEMA_VERSION}".encode(), digest_size=20)
        for part in parts:
            text = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
            digest.update(len(text).to_bytes(8, "little") + text)
        return digest.hexdigest()

    def read(self, key: str) -> bytes | None:
        """The entry under ``key``; ``None`` when there is none to trust."""
        path = self._folder / f"{key}{_SUFFIX}"
        try:
            if foreign(self._folder.parent) is not None or not is_ours(self._folder) or not is_ours(path):
                return None
            body = unsealed(content(path, _MOST_BYTES))
            os.utime(path)
        except OSError:
            return None
        name = key.encode()
        return body.removeprefix(name) if body is not None and body.startswith(name) else None

    def write(self, key: str, body: bytes) -> None:
        """Keeps a summary, where that is possible: it costs a later run time, and this one nothing."""
        with contextlib.suppress(OSError):
            make_private(self._folder, below=self._folder.parent)
            handle, name = tempfile.mkstemp(prefix=_STAGING, dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(sealed(key.encode() + body))
                Path(name).replace(self._folder / f"{key}{_SUFFIX}")
            finally:
                Path(name).unlink(missing_ok=True)

    def shrink(self, largest_bytes: int = LARGEST_BYTES) -> None:
        """Removes the least recently used entries until the rest fits, and incomplete ones of dead processes."""
        with contextlib.suppress(OSError):
            kept = [(entry.stat(), entry) for entry in self._folder.iterdir() if entry.is_file()]
            total = 0
            for status, entry in sorted(kept, key=lambda one: -one[0].st_mtime_ns):
                total += status.st_size
                if total > largest_bytes and entry.name.endswith(_SUFFIX):
                    entry.unlink(missing_ok=True)
