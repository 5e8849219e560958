"""Where batches come from: workers that fill a bounded queue, in order, as PyTorch's DataLoader has them."""

from __future__ import annotations

from benchmarks.accuracy.simulator.engine import Signal, Steps
from benchmarks.accuracy.simulator.host import Rank, Thread
from benchmarks.accuracy.simulator.job import Loader

_NEXT = "enumerate(DataLoader)#{}.__next__"


class Supply:
    """Batches of one rank, numbered; asking for one waits until it is ready."""

    def __init__(self, rank: Rank, loader: Loader) -> None:
        self.rank = rank
        self.loader = loader
        self._ready: dict[int, Signal] = {}
        self._asked: dict[int, Signal] = {}
        if loader.kind == "workers" and not loader.epoch_steps:
            self._start(first=0, last=None)

    def _signal(self, table: dict[int, Signal], batch: int) -> Signal:
        return table.setdefault(batch, Signal())

    def _start(self, *, first: int, last: int | None) -> None:
        for worker in range(self.loader.workers):
            self.rank.clock.spawn(self._worker(first + worker, first, last))
        for batch in range(first, first + self.loader.workers * self.loader.prefetch):
            self._signal(self._asked, batch).fire()

    def _worker(self, batch: int, first: int, last: int | None) -> Steps:
        if self.loader.epoch_steps:
            yield self.loader.restart_ns
        while (last is None or batch < last) and batch - first < 200:
            yield self._signal(self._asked, batch)
            yield self._cost_ns(batch)
            self._signal(self._ready, batch).fire()
            batch += self.loader.workers

    def _cost_ns(self, batch: int) -> int:
        heavy = self.loader.heavy_every and batch % self.loader.heavy_every == self.loader.heavy_every - 1
        return self.rank.vary("batch", self.loader.heavy_ns if heavy else self.loader.batch_ns)

    def take(self, thread: Thread, batch: int) -> Steps:
        """The training thread asks for a batch."""
        if self.loader.kind == "memory":
            return
        name = "_SingleProcessDataLoaderIter" if self.loader.kind == "inline" else "_MultiProcessingDataLoaderIter"
        epoch = self.loader.epoch_steps
        if self.loader.kind == "workers" and epoch and batch and batch % epoch == 0:
            # The fetch that finds the epoch over: it ends the workers and raises StopIteration.
            with thread.span("user_annotation", _NEXT.format(name)):
                yield self.rank.vary("handover", self.loader.handover_ns)
        with (
            thread.frame("torch/utils/data/dataloader.py(734): __next__"),
            thread.span("user_annotation", _NEXT.format(name)),
        ):
            if self.loader.kind == "inline":
                with (
                    thread.frame("torch/utils/data/_utils/fetch.py(52): fetch"),
                    thread.frame("data.py(41): __getitem__"),
                ):
                    yield self._cost_ns(batch)
                return
            if epoch and batch % epoch == 0:
                self._start(first=batch, last=batch + epoch)
            with (
                thread.frame("torch/utils/data/dataloader.py(1275): _try_get_data"),
                thread.frame("queue.py(180): get"),
            ):
                yield self._signal(self._ready, batch)
            yield self.rank.vary("handover", self.loader.handover_ns)
            self._signal(self._asked, batch + self.loader.workers * self.loader.prefetch).fire()
