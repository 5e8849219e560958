"""The engine of one machine: one process for each core, and never more work than fits in free memory."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Final, cast

import msgspec

from whystall.fleet.engines.engine import Done, Work
from whystall.fleet.engines.machine import cores, free_bytes
from whystall.fleet.engines.worker import Answer, read_frame, write_frame

# A worker that took this much is replaced: allocators seldom return all of it.
_LARGE_BYTES: Final = 1 << 30
_PROGRAM: Final = "import sys; sys.path[:] = sys.argv[1:]; from whystall.fleet.engines.worker import main; main()"
_THREADS: Final = ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


@dataclass(eq=False)
class _Worker:
    """A process, and the item that it is at, if any."""

    process: subprocess.Popen[bytes]
    place: int | None = None
    memory_bytes: int = 0
    alone: bool = False

    def give(self, place: int, work: Work, *, alone: bool) -> None:
        self.place, self.memory_bytes, self.alone = place, work.memory_bytes, alone
        with contextlib.suppress(OSError):  # a process that is gone shows when it is read from
            write_frame(cast("IO[bytes]", self.process.stdin), msgspec.msgpack.encode(work))

    def answer(self) -> Answer | None:
        """Its answer, or nothing where it died."""
        frame = read_frame(cast("IO[bytes]", self.process.stdout))
        return None if frame is None else msgspec.msgpack.decode(frame, type=Answer)

    def end(self) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                cast("IO[bytes]", stream).close()
        self.process.wait()


@dataclass
class LocalEngine:
    """Processes of this machine. ``workers`` bounds how many; by default one for each core that may be used.

    An item whose process dies (the kernel ends those that take too much memory) is tried once more when nothing else
    runs; if that fails too, the item has failed and the others go on.
    """

    workers: int | None = None
    free: Callable[[], int] = free_bytes
    name: str = field(default="local", init=False)

    def map(self, work: Sequence[Work]) -> Iterator[Done]:
        """A result for every item, in the order in which they end."""
        most = min(self.workers or cores(), len(work))
        run = _Run(work, most, self.free())
        try:
            yield from run.results()
        finally:
            run.end()


class _Run:
    """One call of ``map``: waiting items, running ones, and those to try again alone."""

    def __init__(self, work: Sequence[Work], most: int, free: int) -> None:
        self.work = work
        self.most = most
        self.free = free
        self.waiting = deque(range(len(work)))
        self.again: deque[int] = deque()
        self.workers: list[_Worker] = []
        self.selector = selectors.DefaultSelector()

    def results(self) -> Iterator[Done]:
        while self.waiting or self.again or self._busy():
            self._hand_out()
            for key, _ in self.selector.select():
                yield from self._taken(cast("_Worker", key.data))

    def end(self) -> None:
        for worker in list(self.workers):
            self._dismiss(worker)
        self.selector.close()

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.place is not None]

    def _hand_out(self) -> None:
        """Gives work to idle workers, as far as memory goes; items whose worker died go alone, at the end."""
        while self.waiting and len(busy := self._busy()) < self.most:
            need = self.work[self.waiting[0]].memory_bytes
            if busy and need + sum(worker.memory_bytes for worker in busy) > self.free:
                return
            place = self.waiting.popleft()
            self._idle().give(place, self.work[place], alone=False)
        if self.again and not self._busy():
            for worker in list(self.workers):
                self._dismiss(worker)
            place = self.again.popleft()
            self._idle().give(place, self.work[place], alone=True)

    def _idle(self) -> _Worker:
        for worker in self.workers:
            if worker.place is None:
                return worker
        worker = _Worker(_started(self.most))
        self.workers.append(worker)
        self.selector.register(cast("IO[bytes]", worker.process.stdout), selectors.EVENT_READ, worker)
        return worker

    def _taken(self, worker: _Worker) -> Iterator[Done]:
        """The result of a worker that has an answer, or that died."""
        place = worker.place
        answer = worker.answer()
        worker.place = None
        if answer is None or answer.again or worker.memory_bytes >= _LARGE_BYTES:
            self._dismiss(worker)
        if place is None:
            return
        if answer is not None and not answer.again:
            yield Done(place, answer.result, answer.failure)
        elif worker.alone:
            yield Done(place, None, "its process ended twice before it was done, as when memory runs out")
        else:
            self.again.append(place)

    def _dismiss(self, worker: _Worker) -> None:
        self.selector.unregister(cast("IO[bytes]", worker.process.stdout))
        self.workers.remove(worker)
        worker.end()


def _started(workers: int) -> subprocess.Popen[bytes]:
    """A worker process, with the number of threads of its share of the cores."""
    threads = str(max(cores() // workers, 1))
    return subprocess.Popen(  # noqa: S603 - this very interpreter, with a constant program
        [sys.executable, "-c", _PROGRAM, *(entry for entry in sys.path if entry)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # an unreadable file is reported in the answer
        bufsize=0,
        env=os.environ | dict.fromkeys(_THREADS, threads),
    )
