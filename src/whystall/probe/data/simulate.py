"""A loader simulated: workers that fetch and collate, the cores they share, and the process that takes the batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_NEVER: Final = float("inf")
_STEADY_ROUNDS: Final = 6


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of each batch in a worker, on its processor and waiting (storage), and of handing one over.

    ``receive_cpu_s`` is the time of the receiving process, ``step_s`` its time with a batch afterwards.
    """

    cpu_s: Sequence[float]
    wait_s: Sequence[float]
    receive_cpu_s: float
    step_s: float = 0.0

    def slower(self, times: float) -> Costs:
        """The same with all but the step taking ``times`` as long."""
        return Costs(
            [one * times for one in self.cpu_s],
            [one * times for one in self.wait_s],
            self.receive_cpu_s * times,
            self.step_s,
        )


def seconds_per_batch(costs: Costs, workers: int, *, cores: int, prefetch: int) -> float:
    """The mean time between two batches that are taken, once workers are under way.

    Batches go to workers in turn and are taken in order, as torch's loader does it; ``workers * prefetch`` are under
    way at most. Those who compute share the cores evenly; a step keeps one core busy. Waiting takes none.

    >>> round(seconds_per_batch(Costs([0.1], [0.0], 0.0), 2, cores=2, prefetch=2), 3)
    0.05
    >>> round(seconds_per_batch(Costs([0.1], [0.0], 0.0), 4, cores=2, prefetch=2), 3)
    0.05
    >>> round(seconds_per_batch(Costs([0.0], [0.1], 0.0), 4, cores=2, prefetch=2), 3)
    0.025
    """
    return _Loader(costs, workers, cores, prefetch).run()


class _Loader:
    """The state of the simulation: the rest of each worker's batch, and of the receiver's."""

    def __init__(self, costs: Costs, workers: int, cores: int, prefetch: int) -> None:
        self._costs = costs
        self._cores = cores
        self._ahead = workers * prefetch
        self._workers = workers
        self._next = list(range(workers))  # the batch that each worker is at, or will be once it may
        self._wait = [_NEVER] * workers
        self._cpu = [_NEVER] * workers
        self._done: set[int] = set()
        self._taken = 0
        self._taking = _NEVER

    def run(self) -> float:
        """Seconds per batch, over some rounds after the first ones."""
        first = self._ahead + self._workers
        last = first + max(_STEADY_ROUNDS * self._ahead, 2 * len(self._costs.cpu_s))
        now, began = 0.0, None
        while self._taken < last:
            self._begin()
            now += self._advance()
            if began is None and self._taken == first:
                began = now
        began = began or 0.0
        return (now - began) / (last - first)

    def _begin(self) -> None:
        """Starts all tasks that can start."""
        if self._taking == _NEVER and self._taken in self._done:
            self._done.remove(self._taken)
            self._taking = self._costs.receive_cpu_s + self._costs.step_s
        handed_out = self._taken + (self._taking != _NEVER) + self._ahead
        for worker in range(self._workers):
            idle = self._wait[worker] == _NEVER and self._cpu[worker] == _NEVER
            if idle and self._next[worker] < handed_out:
                self._wait[worker] = self._costs.wait_s[self._next[worker] % len(self._costs.wait_s)]

    def _advance(self) -> float:
        """Goes on to the next moment at which anything ends; the seconds until then."""
        busy = sum(1 for left in (*self._cpu, self._taking) if left != _NEVER)
        speed = min(1.0, self._cores / busy) if busy else 1.0
        passed = min(*self._wait, *(left / speed for left in (*self._cpu, self._taking)))
        tiny = passed * 1e-9 + 1e-15
        for worker in range(self._workers):
            if self._wait[worker] != _NEVER:
                self._wait[worker] -= passed
                if self._wait[worker] <= tiny:
                    self._wait[worker] = _NEVER
                    self._cpu[worker] = self._costs.cpu_s[self._next[worker] % len(self._costs.cpu_s)]
            elif self._cpu[worker] != _NEVER:
                self._cpu[worker] -= passed * speed
                if self._cpu[worker] <= tiny:
                    self._cpu[worker] = _NEVER
                    self._done.add(self._next[worker])
                    self._next[worker] += self._workers
        if self._taking != _NEVER:
            self._taking -= passed * speed
            if self._taking <= tiny:
                self._taking = _NEVER
                self._taken += 1
        return passed
