"""The samples file: one short line per step, and a line per second of the machine.

The first line names the columns; a line that starts with ``[`` is a step, one that starts with ``{`` is the sampler's.
A step's line is written as the step ends where steps take half a second and more; the lines of shorter steps are
written together, by the sampler's thread some four times a second, since a write costs a step the same as all other
work of ours. A job that is killed loses unwritten lines. With a limit of bytes, the file is replaced by the latest half
of its lines whenever it reaches the limit.
"""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec

from whystall._native import Pauses
from whystall.capture import clock
from whystall.capture.descriptors import OwnFile, deadly_size
from whystall.capture.faults import suppress
from whystall.run_folder.layout import rank_file, samples_name, staged_samples
from whystall.run_folder.samples import SCHEMA, STEP_COLUMNS

_APPENDING: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_TOGETHER_NS: Final = 500_000_000
"""Also where the thread that looks around does not get the interpreter's lock."""
NOT_COUNTED: Final[tuple[int | None, ...]] = (0,) * 7 + (None,)


class SampleWriter:
    """Appends lines to ``rank<R>.samples.jsonl``, which appears with the first step."""

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._file: OwnFile | None = None
        # One thread may enter twice: a signal that ends the job comes amid a line, too.
        self._writing = threading.RLock()
        self._rows: deque[tuple[int | None, ...]] = deque()
        self._written_ns = self._size = 0
        self.path: Path | None = None
        self.rank = 0
        self.bytes_written = 0

    def open(self, rank: int, about: dict[str, Any]) -> None:
        """Creates the file.

        A rank that has a file already (two processes of one rank, another trace) gets the next free one.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        files = [file for path in self._folder.iterdir() if (file := rank_file(path.name)) is not None]
        # Dumps may be our own, of before the first step.
        taken = {file.rank for file in files if file.kind not in ("memory", "flight")}
        for number in range(rank, rank + 10_000):
            if number in taken:
                continue
            path = self._folder / samples_name(number)
            with suppress(FileExistsError):
                self._file = OwnFile(str(path), _APPENDING | os.O_EXCL)
                self.path, self.rank = path, number
                break
        self.write({"schema": SCHEMA, "rank": rank, "pid": os.getpid(), "columns": STEP_COLUMNS, **about})

    def add(self, row: tuple[int | None, ...], now_ns: int) -> None:
        """Appends the row of a step that ended ``now_ns`` (of ``time.perf_counter_ns``); it may be written later."""
        self._rows.append(row)
        if now_ns - self._written_ns >= _TOGETHER_NS:
            self._written_ns = now_ns
            self.write()

    def flush(self) -> None:
        """Writes the rows that are not yet."""
        if self._rows:
            self.write()

    def write(self, *lines: object) -> None:
        """Appends lines, after the rows that were not yet written."""
        with self._writing:  # the sampler's thread writes, too
            data = msgspec.json.Encoder().encode_lines([*self._taken(), *lines])
            if self._file is None or self._size + len(data) > deadly_size():
                return
            written = os.write(self._file.number, data)
            self.bytes_written += written
            self._size += written
            if self._most_bytes is not None and self._size > self._most_bytes:
                self._cut(self._most_bytes // 2)

    def _taken(self) -> list[object]:
        rows: list[object] = []
        with suppress(IndexError):
            while True:
                rows.append(self._rows.popleft())
        return rows

    def begin_again(self) -> None:
        """Drops all lines but the first: the steps in them were none."""
        with self._writing:
            self._rows.clear()
            self._cut(0)

    def _cut(self, kept: int) -> None:
        """Replaces the file by one with its first line and the last ones, of at most ``kept`` bytes."""
        path = self.path
        if path is None or self._file is None:
            return
        with path.open("rb") as file:
            head = file.readline()
            file.seek(max(self._size - kept, len(head)))
            file.readline()  # the rest of a line
            data = head + file.read()
        staged = path.with_name(staged_samples(path.name, os.getpid()))
        shorter = OwnFile(str(staged), _APPENDING | os.O_TRUNC)
        whole = False
        with suppress(OSError):  # a full disk: the file stays as it is, and is cut the next time
            whole = os.write(shorter.number, data) == len(data)
        if not whole:
            shorter.close()
            staged.unlink(missing_ok=True)
            return
        staged.replace(path)
        shorter.path = str(path)
        self._file.close()
        self._file, self._size = shorter, len(data)

    def close(self) -> None:
        """Closes the file, with all rows in it."""
        if self._file is not None:
            try:
                self.flush()
            finally:
                self._file.close()
                self._file = None


def _opened(path: str) -> OwnFile | None:
    with suppress(OSError):  # a machine without it has no such file
        return OwnFile(path, os.O_RDONLY)
    return None


class ThreadCounters:
    """The kernel's counters of the calling thread, as differences between steps; and the memory of its process."""

    def __init__(self) -> None:
        self._statm = _opened("/proc/self/statm")
        self._schedstat = _opened("/proc/thread-self/schedstat")
        self._page_kib = os.sysconf("SC_PAGE_SIZE") // 1024
        self._last = self._read()

    def _read(self) -> tuple[int, ...]:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return (
            clock.thread_time_ns() // 1000,
            usage.ru_nvcsw,
            usage.ru_nivcsw,
            usage.ru_minflt,
            usage.ru_majflt,
            usage.ru_inblock,
            usage.ru_oublock,
            self._queued_us(),
        )

    def _queued_us(self) -> int:
        """How long the thread has been ready to run and on no core."""
        return int(os.pread(self._schedstat.number, 96, 0).split()[1]) // 1000 if self._schedstat is not None else 0

    def since_last(self) -> tuple[int | None, ...]:
        """CPU microseconds, voluntary and involuntary switches, minor and major faults, blocks read and written.

        And microseconds in which it waited for a core; ``None`` where the kernel does not report it.
        """
        now = self._read()
        change = tuple(after - before for before, after in zip(self._last, now, strict=True))
        self._last = now
        return change if self._schedstat is not None else (*change[:-1], None)

    def rss_kib(self) -> int | None:
        """The resident memory of the process; ``None`` where the kernel does not report it."""
        if self._statm is None:
            return None
        return int(os.pread(self._statm.number, 64, 0).split(None, 2)[1]) * self._page_kib

    def close(self) -> None:
        """Closes its files."""
        for file in (self._statm, self._schedstat):
            if file is not None:
                file.close()
        self._statm = self._schedstat = None


class Stopwatch:
    """Time spent between `begin` and `end` on the thread that steps; nested use counts once.

    Among stopwatches that share a list of those ``running``, each instant counts for one, the lowest ``rank``: an
    optimizer that calls the whole training step (a closure) does not count the forward and backward pass in it.
    """

    def __init__(self, running: list[Stopwatch] | None = None, rank: int = 0) -> None:
        # Plain attributes: this is called several times a step, by code that is no longer in the core's cache.
        self.depth = 0
        """How many of its beginnings have not ended; it runs where that is any."""
        self.began_ns = self.ended_ns = 0
        """When it began and ended last."""
        self.inner_ns = self.total_ns = 0
        self._running = [] if running is None else running
        self.rank = rank

    def begin(self) -> None:
        """Starts counting."""
        if self.depth == 0:
            self.inner_ns = 0
            self._running.append(self)
            self.began_ns = clock.perf_counter_ns()
        self.depth += 1

    def end(self) -> None:
        """Stops counting."""
        if self.depth == 0:
            return
        self.depth -= 1
        if self.depth == 0:
            self.ended_ns = clock.perf_counter_ns()
            self._count(self.ended_ns - self.began_ns)

    def _count(self, whole_ns: int) -> None:
        running = self._running
        owner = self
        for other in running:
            if other.rank < owner.rank:
                owner = other
        owner.total_ns += max(whole_ns - self.inner_ns, 0)
        running.remove(self)
        if running:
            running[-1].inner_ns += whole_ns

    def was_another(self, other: Stopwatch) -> None:
        """Moves the time until now to the other stopwatch, except time counted within it; this one continues."""
        if self.depth:
            now = clock.perf_counter_ns()
            other.total_ns += max(now - self.began_ns - self.inner_ns, 0)
            self.began_ns, self.inner_ns = now, 0

    def forget_if_begun_before(self, at_ns: int) -> None:
        """Stops without counting a begin that long ago: an exception of the job's skipped its end."""
        if self.depth and self.began_ns < at_ns:
            self.depth = 0
            self._running.remove(self)

    def ran_at(self, at_ns: int) -> bool:
        """Whether it ran at a recent instant (of ``time.perf_counter_ns``): within its current or latest run."""
        return self.began_ns <= at_ns and (self.depth > 0 or at_ns <= self.ended_ns)

    def take_us(self) -> int:
        """Microseconds since the last call; a current run is counted next time."""
        total, self.total_ns = self.total_ns, 0
        return total // 1000


class GarbageCollections:
    """Pauses of Python's garbage collector, through ``gc.callbacks``."""

    def __init__(self) -> None:
        self._pauses = Pauses()

    def install(self) -> None:
        """Begins to listen."""
        gc.callbacks.append(self._pauses)

    def remove(self) -> None:
        """Stops listening."""
        with suppress(ValueError):
            gc.callbacks.remove(self._pauses)

    def take_us(self) -> int:
        """Microseconds of pauses since the last call."""
        return self._pauses.take_us()
