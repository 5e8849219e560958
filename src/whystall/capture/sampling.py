"""The measurements of each step: the times of its parts, counters of kernel and device, written as one row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from whystall.capture import clock
from whystall.capture.device_times import DeviceTimes
from whystall.capture.evaluation import Evaluation
from whystall.capture.heap import HeapInUse
from whystall.capture.samples import NOT_COUNTED, GarbageCollections, SampleWriter, Stopwatch, ThreadCounters

COUNT_EVERY_NS: Final = 10_000_000
_OF_EVALUATION: Final = frozenset({"forward", "input", "other"})


class PartTimes:
    """A stopwatch for each part of a step."""

    def __init__(self) -> None:
        # The inner part comes first: a checkpoint, a batch that is waited for within a forward pass. Only a forward
        # pass within a backward pass (recomputation) is the backward pass.
        running: list[Stopwatch] = []
        self.save, self.input, self.backward, self.forward, self.optimizer = (
            Stopwatch(running, rank) for rank in range(5)
        )
        self.collections = GarbageCollections()
        self.evaluation = Evaluation()
        self._told = (self.input, self.forward, self.backward, self.optimizer, self.save, self.collections)
        self._running, self._taken_ns = running, 0
        self._calls_the_step = False
        self._by_name = {
            "save": self.save,
            "input": self.input,
            "backward": self.backward,
            "forward": self.forward,
            "optimizer": self.optimizer,
        }

    def take_us(self) -> tuple[int, ...]:
        """Microseconds of each part since the last call.

        Input, forward, backward, optimizer, save, garbage collection.
        """
        for watch in tuple(self._running):
            watch.forget_if_begun_before(self._taken_ns)
        self._taken_ns = clock.perf_counter_ns()
        self.evaluation.step_ended()
        return tuple([watch.take_us() for watch in self._told])

    def at(self, at_ns: int) -> str:
        """The part that ran at an instant not long ago; ``other`` for none.

        If an optimizer calls the training step (a closure), the time before the backward pass is the forward.
        """
        found = next((name for name, watch in self._by_name.items() if watch.ran_at(at_ns)), "other")
        if found in _OF_EVALUATION and self.evaluation.ran_at(at_ns):
            return "evaluation"
        before_backward = self.backward.ended_ns < self.optimizer.began_ns
        return "forward" if found == "optimizer" and self._calls_the_step and before_backward else found

    def model_is_called(self, samples: Callable[[], list[int]], *, learns: bool, trains: bool) -> None:
        """Records a call of the trained model; before it has learned once no call is an evaluation.

        ``samples`` returns a number for each of a batch's samples; it is called seldom. The model ``learns`` where
        gradients are recorded, and ``trains`` in training mode.
        """
        if not self.optimizer.ended_ns:
            return
        if learns:
            self.evaluation.learns(samples)
        else:
            self.evaluation.begins(samples, trains=trains)

    def backward_begins(self) -> None:
        """Begins a backward pass. One within an optimizer's step is a closure's: before it came the forward pass.

        Lightning's `training_step` calls parts of a model, or the whole and then metrics: no call shows where it begins
        and ends. If an optimizer calls its closure again, the time between is its own.
        """
        self.evaluation.ends()
        self._calls_the_step = self.optimizer.depth > 0
        if self._calls_the_step:
            began = self.optimizer.began_ns
            if self.backward.ended_ns < began or self.forward.ended_ns < began:
                self.optimizer.was_another(self.forward)
        self.backward.begin()


class StepSampler:
    """Writes a row for every step."""

    def __init__(
        self, torch: Any, folder: Path, most_bytes: int | None = None, count_every_ns: int = COUNT_EVERY_NS
    ) -> None:
        self.parts = PartTimes()
        self.writer = SampleWriter(folder, most_bytes)
        self.device = DeviceTimes(torch)
        self._counters: ThreadCounters | None = None
        self._heap = HeapInUse()
        self._count_every_ns = count_every_ns
        self._counted_ns = self._began_ns = 0

    def count(self) -> None:
        """Starts the counters of the calling thread."""
        self._counters = ThreadCounters()

    def open(self, rank: int, world_size: int) -> None:
        """Creates the file unless it is there."""
        if self.writer.path is None:
            self.writer.open(rank, {"began_unix_ns": clock.time_ns(), "world_size": world_size})

    def begin(self, now: int) -> None:
        """Forgets earlier times: the first sampled step begins."""
        self.parts.take_us()
        self._began_ns = now

    def sample(self, step: int, now: int, duration: int, flags: int) -> None:
        """Writes the row of a step that ends now."""
        if self._counters is None:
            return
        self.device.mark()
        # Reading the kernel's counters costs the same as all other work: shorter steps share a reading.
        counted: tuple[int | None, ...] = NOT_COUNTED
        rss_kib = heap_kib = None
        if now - self._counted_ns >= self._count_every_ns:
            counted, rss_kib = self._counters.since_last(), self._counters.rss_kib()
            heap_kib = self._heap.kib()
            self._counted_ns = now
        self.writer.add(
            (
                step,
                (now - self._began_ns) // 1000,
                duration // 1000,
                *self.parts.take_us(),
                *counted,
                self.device.latest_us(),
                rss_kib,
                heap_kib,
                flags,
            ),
            now,
        )

    def disregard_ourselves(self) -> None:
        """Restarts the counters: the profiler's cost just now is no part of the next step."""
        self.parts.collections.take_us()
        if self._counters is not None:
            self._counters.since_last()

    def close_counters(self) -> None:
        """Closes the counters' files."""
        if self._counters is not None:
            self._counters.close()
