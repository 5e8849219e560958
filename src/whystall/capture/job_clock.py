"""When the parts of the job began, and where its main thread is before the first step and after the last one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from whystall.capture import clock
from whystall.run_folder.alive import began_ticks
from whystall.run_folder.job_times import MODEL, MOST_PLACES, JobPlace, JobTimes, by_kind
from whystall.vocabulary.episodes import episode_of
from whystall.vocabulary.job_work import IMPORTS

Place = tuple[str, int, str, str, str, str]
"""File, line, function, the innermost function as ``module:name``, and the kind of work and role (`JobPlace`)."""
_MOST_KEPT: Final = 2_000
_MOST_USES: Final = 200
_FEWEST_USES: Final = 10
_LONG_NS: Final = 5_000_000_000
_MOST_USED: Final = 200
_MOST_DIGITS: Final = 10


class Stamps(NamedTuple):
    """Unix nanoseconds at which our first line ran, and at which the import of torch began and ended."""

    capture_unix_ns: int
    torch_unix_ns: int | None
    imported_unix_ns: int | None


class OutsideSteps:
    """The time at each place of the main thread: before the first step ended, between steps, since the latest one."""

    def __init__(self) -> None:
        self.before: dict[Place, int] = {}
        """Until the first step ended."""
        self.within: dict[Place, int] = {}
        """Since then, in work other than the model's and the job's own."""
        self._unwritten: dict[tuple[int, Place], int] = {}
        self.used: set[str] = set()
        """Packages whose functions were on the stack in the first looks at steps."""
        self._since: dict[Place, int] = {}
        self._in_steps: dict[Place, int] = {}
        """All places in steps, which may turn out to be none."""
        self.uses_seen = self.step = 0
        self.began_again = False
        """Whether `begin_again` was called since the journal was written."""
        self._looked_ns = clock.perf_counter_ns()

    def add(self, place: Place, step: int) -> None:
        """The main thread is at a place after ``step`` steps; the time since the last look counts for it."""
        now = clock.perf_counter_ns()
        passed, self._looked_ns = now - self._looked_ns, now
        if step != self.step:
            self._step_ended(step)
            self._unwritten = {one: ns for one, ns in self._unwritten.items() if not one[0] or _lasts(one[1])}
        self._unwritten[step, place] = self._unwritten.get((step, place), 0) + passed
        for counts in (self._since, self._in_steps) if step else (self.before,):
            if place in counts or len(counts) < _MOST_KEPT:
                counts[place] = counts.get(place, 0) + passed

    def uses(self, packages: Callable[[], set[str]]) -> None:
        """A step runs; ``packages`` lists those on the stack, which is asked for in the first steps only."""
        if self.uses_seen < _MOST_USES:
            self.uses_seen += 1
            self.used |= packages()

    def begin_again(self) -> None:
        """The steps so far were none: an evaluation before training was taken for them."""
        for (file, at, function, leaf, work, role), ns in list(self._in_steps.items()):
            place = file, at, function, leaf, work, role or episode_of(function, "function") or ""
            self.before[place] = self.before.get(place, 0) + ns
        self.within, self._since, self._in_steps = {}, {}, {}
        self.began_again = True

    def _step_ended(self, step: int) -> None:
        for place, ns in self._since.items():
            if _lasts(place) and (place in self.within or len(self.within) < _MOST_KEPT):
                self.within[place] = self.within.get(place, 0) + ns
        self.step, self._since = step, {}

    def unwritten(self, since_step_ns: int) -> dict[int, dict[Place, int]]:
        """The time at each place since the last call, by the number of steps before it.

        The model's and the job's own work counts only once its step has gone on for ``_LONG_NS``.
        """
        every = since_step_ns >= _LONG_NS
        found: dict[int, dict[Place, int]] = {}
        for step, place in list(self._unwritten):
            if every or not step or _lasts(place):
                found.setdefault(step, {})[place] = self._unwritten.pop((step, place))
        return found

    def since(self, step: int) -> dict[Place, int]:
        """The time at each place since the latest step, the one of this number, ended."""
        return self._since if step == self.step else {}


def _lasts(place: Place) -> bool:
    """Whether the time at a place is kept once its step has ended."""
    work, role = place[4:]
    return bool(role) or work not in ("", MODEL)


class JobClock:
    """The instants of this process."""

    def __init__(self, stamps: Stamps | None) -> None:
        self._stamps = stamps
        self._process_unix_ns = _process_unix_ns() if stamps is not None else None
        self._first_batch_unix_ns: int | None = None
        self._first_step_unix_ns: int | None = None

    def batch(self) -> None:
        """A batch was handed out, or a model called."""
        if self._first_batch_unix_ns is None:
            self._first_batch_unix_ns = clock.time_ns()

    def first_step(self) -> None:
        """The first step has ended."""
        self._first_step_unix_ns = clock.time_ns()

    def instants(self) -> dict[str, int]:
        """The instants so far that are known, and the rank that a launcher gave, by the names of `JobTimes`."""
        if self._stamps is None:
            return {}
        rank = os.environ.get("RANK", "")
        known = {
            "rank": int(rank) if rank.isdecimal() and len(rank) < _MOST_DIGITS else None,
            "process_unix_ns": self._process_unix_ns,
            **self._stamps._asdict(),
            "first_batch_unix_ns": self._first_batch_unix_ns,
            "first_step_unix_ns": self._first_step_unix_ns,
        }
        return {name: at for name, at in known.items() if at is not None}

    def told(
        self,
        outside: OutsideSteps,
        steps: int,
        last_step_ns: int,
        shown: Callable[[Place, int], JobPlace],
        packages: set[str],
        *,
        ended: bool,
    ) -> JobTimes | None:
        """The instants so far, with the lines, after ``steps`` steps; the latest ended at ``last_step_ns``.

        ``packages`` are those of the job's modules and data sets.
        ``None`` where the capture was not there from the process's start.
        """
        if self._stamps is None:
            return None
        stepped = self._first_step_unix_ns is not None
        last = clock.time_ns() - (clock.perf_counter_ns() - last_step_ns) if stepped else None
        before, within = (_shown(places, shown) for places in (outside.before, outside.within))
        return JobTimes(
            process_unix_ns=self._process_unix_ns,
            **self._stamps._asdict(),
            first_batch_unix_ns=self._first_batch_unix_ns,
            first_step_unix_ns=self._first_step_unix_ns,
            last_step_unix_ns=max(last, self._first_step_unix_ns or 0) if last is not None else None,
            ended_unix_ns=clock.time_ns() if ended else None,
            before=by_kind(before),
            within=by_kind(within),
            used=sorted(outside.used | packages)[:_MOST_USED] if outside.uses_seen >= _FEWEST_USES else None,
            before_steps=before[:MOST_PLACES],
            within_steps=within[:MOST_PLACES],
            after_steps=_shown(outside.since(steps), shown)[:MOST_PLACES] if ended and stepped else [],
        )


def _shown(places: dict[Place, int], shown: Callable[[Place, int], JobPlace]) -> list[JobPlace]:
    """The lines by their time, each kind of work (and imported package) with its costliest innermost function."""
    by_line: dict[tuple[str, int, str, str, str], tuple[int, Place]] = {}
    for place, ns in sorted(places.items(), key=lambda one: -one[1]):
        package = place[3].partition(":")[0].partition(".")[0] if place[4] == IMPORTS else ""
        line = (*place[:2], *place[4:], package)
        whole, costliest = by_line.get(line, (0, place))
        by_line[line] = whole + ns, costliest
    return [shown(place, ns) for ns, place in sorted(by_line.values(), key=lambda one: -one[0])]


def _process_unix_ns() -> int | None:
    """The start of this process; ``None`` where the kernel does not report it."""
    ticks = began_ticks(os.getpid())
    if ticks is None:
        return None
    age = clock.boottime_ns() - ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
    return clock.time_ns() - age
