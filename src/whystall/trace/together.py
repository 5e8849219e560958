"""Recordings that are several files beside each other: one stands for all, whichever of them is named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from whystall.trace.readers.reader import Reader, ReaderOfSeveral, Whole


def whole_of(path: Path, readers: Iterable[Reader]) -> Whole:
    """The recording that a file is of: most often itself alone."""
    for reader in readers:
        if isinstance(reader, ReaderOfSeveral):
            with contextlib.suppress(OSError):  # opening the file reports why it fails
                if (found := reader.whole_of(path)) is not None:
                    return found
    return Whole(path.name, (path,))


def each_once(paths: Iterable[Path], readers: Iterable[Reader], told: set[Path] | None = None) -> list[Path]:
    """The files, with one for each recording in several files, except those that are in ``told``."""
    known = set() if told is None else told
    asked = [reader for reader in readers if isinstance(reader, ReaderOfSeveral)]
    found: list[Path] = []
    for path in paths:
        whole = whole_of(path, asked)
        first = whole.files[0].absolute()
        if len(whole.files) == 1 or first not in known:
            found.append(whole.files[0])
        known.add(first)
    return found
