"""The cost of a batch where it is made: time of fetching and of collating, in a worker or in this process.

The fetchers of torch's loader are wrapped while a probe runs. Workers are forked, so that they inherit the wrappers and
the memory that the times are written to; nothing of the data set or of the user's loader is changed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any, Final

_FIELDS: Final = 7
_MOST: Final = 4096  # batches that one process notes


@dataclass(frozen=True, slots=True)
class Batch:
    """Seconds of one batch in the process that made it.

    Waiting is neither the processor's time nor waiting for a processor.
    """

    fetch_cpu_s: float
    fetch_wait_s: float
    collate_cpu_s: float
    collate_wait_s: float
    process_cpu_s: float
    """CPU time of the whole process since it began, at the batch's end."""


class Recorder:
    """Memory that forked workers write their batches' times to; place 0 is this process, then one for each worker."""

    def __init__(self, workers: int) -> None:
        self._numbers = RawArray("d", (workers + 1) * _MOST * _FIELDS)
        self._counts = RawArray("l", workers + 1)

    def note(self, place: int, numbers: tuple[float, ...]) -> None:
        """Keeps one batch's numbers, as long as there is room."""
        count = self._counts[place]
        if count < _MOST:
            at = (place * _MOST + count) * _FIELDS
            self._numbers[at : at + _FIELDS] = numbers
            self._counts[place] = count + 1

    def batches(self, place: int) -> list[Batch]:
        """The batches of one process, in turn."""
        found = []
        for index in range(self._counts[place]):
            at = (place * _MOST + index) * _FIELDS
            wall, cpu, queued, collate_wall, collate_cpu, collate_queued, process_cpu = self._numbers[at : at + _FIELDS]
            found.append(
                Batch(
                    fetch_cpu_s=cpu,
                    fetch_wait_s=max(wall - cpu - queued, 0.0),
                    collate_cpu_s=collate_cpu,
                    collate_wait_s=max(collate_wall - collate_cpu - collate_queued, 0.0),
                    process_cpu_s=process_cpu,
                )
            )
        return found


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Has every batch noted that this process makes, or a worker forked from it meanwhile."""
    from torch.utils.data import get_worker_info  # noqa: PLC0415 - takes seconds, and only probing needs it
    from torch.utils.data._utils import fetch as fetchers  # noqa: PLC0415

    kinds = (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher)  # noqa: SLF001 - the only way in
    originals = [kind.fetch for kind in kinds]

    def place() -> int:
        worker = get_worker_info()
        return 0 if worker is None else int(worker.id) + 1

    for kind, original in zip(kinds, originals, strict=True):
        kind.fetch = _timed(original, recorder, place)
    try:
        yield
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            kind.fetch = original


def _timed(original: Callable[[Any, Any], Any], recorder: Recorder, place: Callable[[], int]) -> Callable[..., Any]:
    clock = _Clock()

    def fetch(self: Any, indices: Any) -> Any:
        collate, moments = self.collate_fn, []

        def told(data: Any) -> Any:
            moments.append(clock.now())
            made = collate(data)
            moments.append(clock.now())
            return made

        self.collate_fn = told
        began = clock.now()
        try:
            made = original(self, indices)
        finally:
            self.collate_fn = collate
        if len(moments) == 2:
            fetched, collated = moments
            numbers = [b - a for a, b in zip(began, fetched, strict=True)]
            numbers += [b - a for a, b in zip(fetched, collated, strict=True)]
            recorder.note(place(), (*numbers, time.process_time()))
        return made

    return fetch


class _Clock:
    """Wall, processor and queueing time of the calling thread, in seconds."""

    def __init__(self) -> None:
        self._owner: tuple[int, int] | None = None
        self._file: int | None = None

    def now(self) -> tuple[float, float, float]:
        """The three at once. Without the kernel's account (elsewhere than Linux) nothing was queued."""
        owner = (os.getpid(), threading.get_ident())
        if owner != self._owner:
            self._owner, self._file = owner, None
            with contextlib.suppress(OSError):
                self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        queued = 0.0
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                queued = int(os.pread(self._file, 96, 0).split()[1]) / 1e9
        return time.perf_counter(), time.thread_time(), queued
