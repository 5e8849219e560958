"""When the parts of the job began, and where its main thread is before the first step and after the last one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from whystall.capture import clock
from whystall.run_folder.alive import began_ticks
from whystall.run_folder.job_times import MOST_PLACES, JobPlace, JobTimes

Place = tuple[str, int, str, str]
"""File, line, function, and the innermost function as ``module:name``."""
_MOST_KEPT: Final = 2_000


class Stamps(NamedTuple):
    """Unix nanoseconds at which our first line ran, and at which the import of torch began and ended."""

    capture_unix_ns: int
    torch_unix_ns: int | None
    imported_unix_ns: int | None


class OutsideSteps:
    """The time at each place of the main thread since the latest step ended, or since the job began."""

    def __init__(self) -> None:
        self.before: dict[Place, int] = {}
        """Until the first batch."""
        self._since: dict[Place, int] = {}
        self.imports_ns = 0
        """In imports, until then."""
        self._begun = False
        self._step = 0
        self._looked_ns = clock.perf_counter_ns()

    def begin(self) -> None:
        """The first batch has arrived: the first step begins."""
        self._begun = True

    def add(self, place: Place, step: int, *, imports: bool = False) -> None:
        """The main thread is at a place, perhaps importing; the time since the last look counts for it."""
        now = clock.perf_counter_ns()
        passed, self._looked_ns = now - self._looked_ns, now
        if step != self._step:
            self._step = step
            self._since = {}
        if self._begun and not step:
            return
        self.imports_ns += passed if imports else 0
        counts = self._since if step else self.before
        if place in counts or len(counts) < _MOST_KEPT:
            counts[place] = counts.get(place, 0) + passed

    def since(self, step: int) -> dict[Place, int]:
        """The time at each place since the latest step, the one of this number, ended."""
        return self._since if step == self._step else {}

    def looked(self) -> None:
        """A look that counts for no place: the time until it is dropped."""
        self._looked_ns = clock.perf_counter_ns()


class JobClock:
    """The instants of this process."""

    def __init__(self, stamps: Stamps | None) -> None:
        self._stamps = stamps
        self._process_unix_ns = _process_unix_ns() if stamps is not None else None
        self._first_batch_unix_ns: int | None = None
        self._first_step_unix_ns: int | None = None

    def batch(self, outside: OutsideSteps) -> None:
        """A batch was handed out, or a model called."""
        if self._first_batch_unix_ns is None:
            self._first_batch_unix_ns = clock.time_ns()
            outside.begin()

    def first_step(self) -> None:
        """The first step has ended."""
        self._first_step_unix_ns = clock.time_ns()

    def told(
        self,
        outside: OutsideSteps,
        steps: int,
        last_step_ns: int,
        shown: Callable[[Place, int], JobPlace],
        *,
        ended: bool,
    ) -> JobTimes | None:
        """The instants so far, with the lines, after ``steps`` steps; the latest ended at ``last_step_ns``.

        ``None`` where the capture was not there from the process's start.
        """
        if self._stamps is None:
            return None
        stepped = self._first_step_unix_ns is not None
        last = clock.time_ns() - (clock.perf_counter_ns() - last_step_ns) if stepped else None
        return JobTimes(
            process_unix_ns=self._process_unix_ns,
            **self._stamps._asdict(),
            first_batch_unix_ns=self._first_batch_unix_ns,
            first_step_unix_ns=self._first_step_unix_ns,
            last_step_unix_ns=max(last, self._first_step_unix_ns or 0) if last is not None else None,
            ended_unix_ns=clock.time_ns() if ended else None,
            imports_ns=outside.imports_ns,
            before_steps=_longest(outside.before, shown),
            after_steps=_longest(outside.since(steps), shown) if ended and stepped else [],
        )


def _longest(places: dict[Place, int], shown: Callable[[Place, int], JobPlace]) -> list[JobPlace]:
    """The lines with most of the time, each with its costliest innermost function."""
    by_line: dict[tuple[str, int], tuple[int, Place]] = {}
    for place, ns in sorted(places.items(), key=lambda one: -one[1]):
        whole, costliest = by_line.get(place[:2], (0, place))
        by_line[place[:2]] = whole + ns, costliest
    longest = sorted(by_line.values(), key=lambda one: -one[0])[:MOST_PLACES]
    return [shown(place, ns) for ns, place in longest]


def _process_unix_ns() -> int | None:
    """The start of this process; ``None`` where the kernel does not report it."""
    ticks = began_ticks(os.getpid())
    if ticks is None:
        return None
    age = clock.boottime_ns() - ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
    return clock.time_ns() - age
