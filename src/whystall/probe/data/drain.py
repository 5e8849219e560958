"""A loader run for a while with nothing done to its batches: their number, and the cost of each."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from whystall.errors import InputError
from whystall.probe.data.simulate import Costs
from whystall.probe.data.source import USUAL_PREFETCH, Source
from whystall.probe.data.stages import Batch, Recorder, recording

_FEWEST: Final = 8  # batches, however long they take
_LONGEST_S: Final = 60.0
_NOTED: Final = 0.5
"""Warm-up without workers before batches count, as a share of the counting time.

Workers run for the same share before any batch counts: a forked one copies each page of the objects that it reads for
the first time, which takes a fifth of batches that are put together in Python.
"""


@dataclass(frozen=True, slots=True)
class Drained:
    """A run with ``workers``: seconds to the first batch and between later ones, and the receiver's own per batch."""

    workers: int
    batches: int
    first_s: float
    batch_s: float
    receive_cpu_s: float
    made: Sequence[Batch]
    """The cost of each batch in the first of the workers, or this process; empty where workers are not forked."""


def drain(source: Source, workers: int, *, seconds: float) -> Drained:
    """Takes batches for about ``seconds`` once the workers are under way. Raises ``InputError`` for too few.

    In this process the cost of each batch is noted first, and then their number is counted without notes, which would
    cost a fourth of a batch of tensors that are in memory.
    """
    recorder = Recorder(workers)
    with contextlib.ExitStack() as noting:
        noting.enter_context(recording(recorder))
        began = time.perf_counter()
        with _Batches(source, workers) as batches:
            batches.take()
            first_s = time.perf_counter() - began
            for _ in range(max(2 * workers * USUAL_PREFETCH, 1)):
                batches.take()
            counted_from = len(recorder.batches(min(workers, 1)))
            _counted(batches, seconds * _NOTED, until=began + _LONGEST_S / 2)
            if not workers:
                noting.close()
            else:
                counted_from = len(recorder.batches(1))
            count, spent, cpu = _counted(batches, seconds, until=began + _LONGEST_S)
    made = recorder.batches(min(workers, 1))[counted_from:]
    return Drained(workers, count, first_s, spent / count, cpu / count, made)


def _counted(batches: _Batches, seconds: float, *, until: float) -> tuple[int, float, float]:
    """Takes batches for ``seconds``, but not beyond ``until``: their number, the time, and the receiver's CPU time."""
    count, spent, cpu = 0, 0.0, 0.0
    while count < _FEWEST or spent < seconds:
        cpu_before, before = time.thread_time(), time.perf_counter()
        batches.take()
        spent += time.perf_counter() - before
        cpu += time.thread_time() - cpu_before
        count += 1
        if time.perf_counter() > until and count > 1:
            break
    return count, spent, cpu


class _Batches:
    """Batches without end; an iterable data set restarts, without a mark."""

    def __init__(self, source: Source, workers: int) -> None:
        fork = source.start_method == "fork"
        self._loader = source.with_workers(workers, fork=fork)
        self._iterator: Iterator[Any] | None = None

    def __enter__(self) -> Self:
        self._iterator = iter(self._loader)
        return self

    def __exit__(self, *_: object) -> None:
        self._iterator = None  # ends the workers

    def take(self) -> Any:
        """The next batch."""
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self._loader)
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
        raise InputError("the loader has no batch to hand out")


def costs_of(made: Sequence[Batch], *, receive_cpu_s: float, in_worker: bool) -> Costs:
    """The costs of every batch, from one worker's; its sending is its process's time beside making them."""
    send = send_cpu_s(made) if in_worker else 0.0
    return Costs(
        [one.fetch_cpu_s + one.collate_cpu_s + send for one in made],
        [one.fetch_wait_s + one.collate_wait_s for one in made],
        receive_cpu_s,
    )


def send_cpu_s(made: Sequence[Batch]) -> float:
    """Processor time of a worker per batch that went neither to fetching nor to collating."""
    if len(made) < 2:
        return 0.0
    whole = (made[-1].process_cpu_s - made[0].process_cpu_s) / (len(made) - 1)
    return max(whole - statistics.fmean(one.fetch_cpu_s + one.collate_cpu_s for one in made[1:]), 0.0)
