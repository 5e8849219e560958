"""The interface of a reader, and its output: tables of events that nothing links yet.

Linking, nesting, steps and the cache are common to all formats and live elsewhere (``trace/assemble.py``), so that a
new format is one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import polars as pl

from whystall.trace.files import Head, Limits, Progress
from whystall.trace.metadata import Metadata
from whystall.trace.model import Quarantine

READERS_GROUP: Final = "whystall.readers"
"""The entry point by which other packages bring readers: a `Reader`, or several."""


@dataclass(frozen=True, slots=True, eq=False)
class MarkedSteps:
    """The steps of a format that marks steps itself, none if none were marked; no other source of steps is used then.

    ``table`` has the columns name, ts_ns, duration_ns, thread. A step in host time owns its launches; with times
    ``of_device`` it owns the events that began within them.
    """

    table: pl.DataFrame
    marked_by: str | None
    of_device: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class RawTrace:
    """One process's recording as a reader returns it.

    ``tables`` holds the format's content, under the names and with the columns of `whystall.trace.schema`; missing
    tables and columns are left out. ``threads`` has a row (pid, tid, name) for each thread, to which the tables'
    ``thread`` columns point.
    """

    tables: dict[str, pl.DataFrame]
    threads: pl.DataFrame
    events: int
    """How many events the file holds, those that were set aside included."""
    raw_bytes: int
    """The size of the content, unpacked."""
    metadata: Metadata = field(default_factory=Metadata)
    process: str | None = None
    """Distinguishes this recording from others in the same file; ``None`` where there is only one."""
    truncated: bool = False
    warnings: Sequence[str] = ()
    quarantined: Sequence[Quarantine] = ()
    extra_arguments: pl.DataFrame | None = None
    """Arguments that have no column: table, row (in time order), key, value."""
    steps: MarkedSteps | None = None
    """Where the format marks steps itself; otherwise they are found among annotations."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A recording in several files: its name, and the files, first the one that stands for all."""

    name: str
    files: tuple[Path, ...]


@runtime_checkable
class ReaderOfSeveral(Protocol):
    """The further method of a reader whose recordings may be several files beside each other."""

    def whole_of(self, path: Path) -> Whole | None:
        """The recording of a file or a folder; ``None`` for one that does not consist of several files.

        Any of the files may be named; `Reader.read` gets the one that stands for all.
        """


@runtime_checkable
class Reader(Protocol):
    """One format: knows its files by their content and reads them."""

    @property
    def name(self) -> str:
        """A short name, such as ``kineto``."""

    @property
    def version(self) -> int:
        """Raised whenever the same file gives other tables: cached tables are then read from the file again."""

    @property
    def describes(self) -> str:
        """The format in a few words, for the error that lists readable ones."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """How names of such files end: in a folder, only these are opened. One that is named may be called anything."""

    def knows(self, head: Head) -> bool:
        """Whether the file is of this format."""

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        """The recordings in a file, one for each process, as far as it can be read; ``warnings`` name the lost parts.

        Raises `InputError` with a plain sentence where there is nothing to read.
        """
