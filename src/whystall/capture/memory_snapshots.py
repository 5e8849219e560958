"""Snapshots of torch's CUDA allocator, with the lines that ask for memory: of a window, and of where memory ran out.

Reasoned from torch's documentation of `torch.cuda.memory`; not yet tried on a device.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from whystall.capture.descriptors import deadly_size
from whystall.capture.faults import Faults
from whystall.run_folder.layout import oom_name, snapshot_name, staged_snapshot

_MOST_ENTRIES: Final = 100_000
_MOST_OF_FAILURES: Final = 3
"""A search for the largest batch runs out of memory repeatedly."""


class MemorySnapshots:
    """Begins to record once the job uses a CUDA device, and never makes it use one; ``rank`` returns this rank.

    A history that the user records is left as it is, and its snapshots are ours as well.
    """

    def __init__(self, torch: Any, folder: Path, rank: Callable[[], int], faults: Faults, *, wanted: bool) -> None:
        self._torch, self._folder, self._rank = torch, folder, rank
        self._write = faults.guard("memory snapshots", self._written)
        self._waits, self._failures = wanted, 0
        self._begun = False

    def look(self) -> None:
        """Begins, if the job has begun to use a device."""
        cuda = self._torch.cuda
        if not self._waits or not (cuda.is_available() and cuda.is_initialized()):
            return
        self._waits = False
        if not getattr(self._torch._C, "_cuda_isHistoryEnabled", bool)():  # noqa: SLF001 - torch has no public name
            # Only Python's frames: those of C++ make a snapshot ten times as large.
            cuda.memory._record_memory_history(stacks="python", max_entries=_MOST_ENTRIES)  # noqa: SLF001 - likewise
        self._torch._C._cuda_attachOutOfMemoryObserver(self._failed)  # noqa: SLF001 - likewise
        self._begun = True

    def window_over(self) -> None:
        """Writes the allocations until the end of a window; the latest of several windows stays."""
        if self._begun:
            self._write(snapshot_name(self._rank()))

    def _failed(self, *_: int) -> None:
        """Memory has run out: writes the state before the job's exception."""
        self._failures += 1
        if self._failures <= _MOST_OF_FAILURES:
            self._write(oom_name(self._rank()))

    def _written(self, name: str) -> None:
        if deadly_size() < math.inf:
            return  # the allocator writes the file, of unknown size
        self._folder.mkdir(parents=True, exist_ok=True)
        staged = self._folder / staged_snapshot(name, os.getpid())
        try:
            self._torch.cuda.memory._dump_snapshot(str(staged))  # noqa: SLF001 - likewise
            staged.replace(self._folder / name)
        finally:
            staged.unlink(missing_ok=True)
