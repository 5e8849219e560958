"""What the threads beside a job may ask of the session that started them, so that neither has to know the other."""

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

    def part_of_step(self, at_ns: int) -> str | None:
        """What the stepping thread was at a moment ago; ``None`` where a look would say nothing of usual steps."""

    def write_line(self, line: dict[str, Any]) -> None:
        """Adds a line to the samples."""

    def look_around(self) -> None:
        """Sees to what nobody in the job calls us for."""
