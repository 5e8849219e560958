"""The cost of observation: our own time in steps and beside them, and the lengthening of recorded steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from whystall.capture import clock
from whystall.run_folder.description import LookCost, Overhead

_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")


class Within:
    """Our own time in calls that the job makes of us in the middle of a step, in nanoseconds."""

    def __init__(self) -> None:
        self._ns = 0

    def timed(self, function: Callable[_Arguments, _Returned]) -> Callable[_Arguments, _Returned]:
        """A function whose calls count."""

        def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Returned:
            began = clock.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self._ns += clock.perf_counter_ns() - began

        return called

    def without(self, ns: int) -> None:
        """Subtracts time of the current call that counts elsewhere."""
        self._ns -= ns

    def take(self) -> int:
        """The time since the last call of this."""
        taken, self._ns = self._ns, 0
        return taken


class Costs:
    """Sums over the steps of a session, in nanoseconds."""

    def __init__(self) -> None:
        self._hook_ns = self._outside_ns = self._profiled_ns = self._paused_ns = 0
        self._outside_steps = self._profiled_steps = 0
        self._looked: dict[str, tuple[int, int]] = {}
        """Per look its steps, and their time."""

    def profiled(self, duration: int) -> None:
        """Takes note of a step within a window."""
        self._profiled_ns += duration
        self._profiled_steps += 1

    def looked(self, duration: int, look: str) -> None:
        """Takes note of a step whose operators or modules were looked at."""
        steps, total = self._looked.get(look, (0, 0))
        self._looked[look] = steps + 1, total + duration

    def outside(self, duration: int, ours: int) -> None:
        """Takes note of a step outside windows, and of our own time in it and after it."""
        self._outside_ns += duration
        self._outside_steps += 1
        self._hook_ns += ours

    def paused(self, duration: int) -> None:
        """Takes note of how long the job stood still while a window was opened, marked, or closed and written."""
        self._paused_ns += duration

    def told(self, export_ns: int, watched_ns: int, threads_ns: int = 0) -> Overhead:
        """The costs for the run's description; our threads have computed for ``threads_ns``."""
        usual_ns = self._outside_ns / max(self._outside_steps, 1)
        looks = {
            name: LookCost(steps=steps, longer_ns=max(round(total - steps * usual_ns), 0) if self._outside_steps else 0)
            for name, (steps, total) in self._looked.items()
        }
        return Overhead(
            hooks_share=self._hook_ns / max(self._outside_ns, 1),
            threads_share=threads_ns / max(watched_ns, 1),
            looked_ns=sum(one.longer_ns for one in looks.values()),
            looks=looks,
            profiled_over_unprofiled=self._profiled_over_unprofiled(),
            export_ns=export_ns,
            paused_ns=self._paused_ns,
            watched_ns=watched_ns,
        )

    def _profiled_over_unprofiled(self) -> float | None:
        if not self._profiled_steps or not self._outside_steps or not self._outside_ns:
            return None
        return (self._profiled_ns / self._profiled_steps) / (self._outside_ns / self._outside_steps)
