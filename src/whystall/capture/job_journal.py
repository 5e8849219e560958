"""A journal of the job's parts, written while it runs: a job that is killed keeps it.

Each line is appended by one call of the kernel. Looks are written as what passed since the last line, so that a steady
job writes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from whystall.capture import clock
from whystall.capture.descriptors import OwnFile, deadly_size
from whystall.capture.faults import suppress
from whystall.run_folder.layout import journal_name

_EVERY_NS: Final = 200_000_000
_MOST_BYTES: Final = 4 << 20
_APPENDING: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class JobJournal:
    """Appends lines to ``process<PID>.job.jsonl``, which appears with the first one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / journal_name(os.getpid())
        self._file: OwnFile | None = None
        self._size = self._written_ns = 0

    @property
    def is_due(self) -> bool:
        """Whether the last line is a while ago."""
        return clock.perf_counter_ns() - self._written_ns >= _EVERY_NS

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line, unless the journal is full."""
        self._written_ns = clock.perf_counter_ns()
        data = msgspec.json.encode(line) + b"\n"
        if self._size + len(data) > min(_MOST_BYTES, deadly_size()):
            return
        with suppress(FileNotFoundError):  # the run folder was removed: there is nowhere to write to
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = OwnFile(str(self._path), _APPENDING)
            self._size += os.write(self._file.number, data)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
