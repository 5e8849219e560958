"""The interface of a session for the threads that it starts, so that neither has to know the other."""

from __future__ import annotations

from typing import Any, Protocol

from whystall.capture.faults import Faults


class Watched(Protocol):
    """A process under observation, as its samplers see it."""

    faults: Faults

    @property
    def steps(self) -> int:
        """How many steps have ended, the first included."""

    @property
    def stepping_thread(self) -> int | None:
        """The thread that steps, once it has."""

    @property
    def recording(self) -> bool:
        """Whether a window is recorded at the moment."""

    @property
    def loader_is_new(self) -> bool:
        """Whether a loader began and has not handed out a batch yet."""

    def part_of_step(self, at_ns: int) -> str | None:
        """The stepping thread's part of the step a moment ago; ``None`` where a sample would not be typical."""

    def keep_journal(self) -> None:
        """Writes what is new of the job's parts, now and then."""

    def write_line(self, line: dict[str, Any]) -> None:
        """Adds a line to the samples."""

    def look_around(self) -> None:
        """Periodic work that no call of the job triggers."""
