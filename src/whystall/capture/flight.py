"""Dumps of PyTorch's flight recorder when one of several ranks hangs, or fails: kept in the run folder.

A rank that waits in a collective for one that never comes is killed in the end, and cannot report any more for which
rank it waited. So the dump is made while it waits, by the sampler's thread, and deleted once the job goes on. A dump of
a recorder that is off holds nothing, and shows just that.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from whystall.capture.descriptors import write_whole
from whystall.capture.ranks import joined
from whystall.run_folder.layout import flight_name, staged_flight

_STILL_NS: Final = 10_000_000_000
_STEPS_LONG: Final = 20
# The usual time before the first step is unknown: models are loaded in it.
_BEFORE_STEPS_NS: Final = 60_000_000_000
_AGAIN: Final = 2.0
# A build for CUDA has two recorders, up to torch 2.13 at least: NCCL's own, and that of gloo and all others.
_DUMPS: Final = ("_dump_nccl_trace", "_dump_fr_trace")


class FlightRecorder:
    """Dumps the content of this process's recorder."""

    def __init__(self, torch: Any, folder: Path) -> None:
        self._torch = torch
        self._folder = folder
        self._path: Path | None = None
        self._at_step = 0
        self._next_ns = 0.0

    def look(self, steps: int, still_ns: int, usual_ns: float) -> None:
        """Makes a dump when no step has ended for ``still_ns``, long for steps that take ``usual_ns``."""
        if self._path is not None and steps > self._at_step:
            self._forget()
        limit = max(_STILL_NS, _STEPS_LONG * usual_ns) if steps else _BEFORE_STEPS_NS
        if still_ns > max(limit, self._next_ns) and self._dump(steps):
            self._next_ns = still_ns * _AGAIN

    def close(self, steps: int, *, failed: bool) -> None:
        """At the end of the process; a killed process leaves its dump.

        If it ``failed``, the dump of its hang is kept: once another rank is gone, no rank seems to wait.
        """
        if failed and self._path is not None and steps == self._at_step:
            return
        self._forget()
        if failed:
            self._dump(steps)

    def _forget(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._path, self._next_ns = None, 0.0

    def _dump(self, steps: int) -> bool:
        """Whether there was something to write."""
        distributed = joined(self._torch)
        if distributed is None or distributed.get_world_size() < 2:
            return False
        c10d = self._torch._C._distributed_c10d  # noqa: SLF001 - the recorder has no public name
        held = b""
        for name in _DUMPS:
            with suppress(AttributeError, RuntimeError):  # another torch has one of them alone
                held = max(held, getattr(c10d, name)(), key=len)
        if not held:
            return False
        rank = int(distributed.get_rank())
        staged = self._folder / staged_flight(rank, os.getpid())
        write_whole(staged, held)
        self._path, self._at_step = staged.replace(self._folder / flight_name(rank)), steps
        return True
