"""The clock of the simulation: threads are generators, time is integer nanoseconds, nothing depends on luck."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")


class Signal:
    """Something that happens once."""

    __slots__ = ("_waiting", "fired")

    def __init__(self) -> None:
        self.fired = False
        self._waiting: list[Callable[[], None]] = []

    def then(self, call: Callable[[], None]) -> None:
        """Call when fired; at once if it is already."""
        if self.fired:
            call()
        else:
            self._waiting.append(call)

    def fire(self) -> None:
        """Let those go on that wait, in the order in which they came."""
        self.fired = True
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


Returning: TypeAlias = Generator[int | Signal, None, T]
"""What a simulated thread yields: nanoseconds to be busy for, or a signal to wait for; it returns a ``T``."""
Steps: TypeAlias = Returning[None]
"""The same, returning nothing."""


class Clock:
    """Simulated time and what is to happen."""

    def __init__(self) -> None:
        self.now = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, time_ns: int, call: Callable[[], None]) -> None:
        """Call at a time; calls of one time keep the order in which they were asked for."""
        heapq.heappush(self._agenda, (max(time_ns, self.now), next(self._order), call))

    def spawn(self, steps: Steps) -> Signal:
        """Start a thread; the signal fires when it ends."""
        ended = Signal()

        def advance() -> None:
            for wanted in steps:
                if isinstance(wanted, Signal):
                    if wanted.fired:
                        continue
                    wanted.then(lambda: self.at(self.now, advance))
                    return
                self.at(self.now + wanted, advance)
                return
            ended.fire()

        self.at(self.now, advance)
        return ended

    def run(self) -> None:
        """Let everything happen."""
        while self._agenda:
            self.now, _, call = heapq.heappop(self._agenda)
            call()
