"""What observation costs a job: our own time between steps, and how much longer steps take under the profiler."""

from __future__ import annotations

from whystall.run_folder.description import Overhead


class Costs:
    """Sums over the steps of a session, in nanoseconds."""

    def __init__(self) -> None:
        self._hook_ns = self._outside_ns = self._profiled_ns = self._paused_ns = 0
        self._outside_steps = self._profiled_steps = 0

    def profiled(self, duration: int) -> None:
        """Takes note of a step within a window."""
        self._profiled_ns += duration
        self._profiled_steps += 1

    def outside(self, duration: int, ours: int) -> None:
        """Takes note of a step outside windows, and of our own time after it."""
        self._outside_ns += duration
        self._outside_steps += 1
        self._hook_ns += ours

    def paused(self, duration: int) -> None:
        """Takes note of how long the job stood still while a window was opened, marked, or closed and written."""
        self._paused_ns += duration

    def told(self, export_ns: int, watched_ns: int) -> Overhead:
        """The costs as the run's description tells them."""
        return Overhead(
            hooks_share=self._hook_ns / max(self._outside_ns, 1),
            profiled_over_unprofiled=self._profiled_over_unprofiled(),
            export_ns=export_ns,
            paused_ns=self._paused_ns,
            watched_ns=watched_ns,
        )

    def _profiled_over_unprofiled(self) -> float | None:
        if not self._profiled_steps or not self._outside_steps or not self._outside_ns:
            return None
        return (self._profiled_ns / self._profiled_steps) / (self._outside_ns / self._outside_steps)
