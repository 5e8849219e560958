"""The loop of SGLang's scheduler by stage: wall time that its own counters divide without a remainder.

``sglang:scheduler_stage_seconds_total`` (since 0.5.20) has mutually exclusive categories that add up to the loop's
time; ``sglang:forward_execution_seconds_total`` is the device's time by forward mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from whystall.serving.readers.reader import nanoseconds
from whystall.serving.records import ServedRun

__all__ = ["SchedulerLoop", "scheduler_loop"]

_STAGES: Final = "scheduler_stage_seconds."
_FORWARD: Final = "forward_execution_seconds."


@dataclass(frozen=True, slots=True)
class SchedulerLoop:
    """Nanoseconds by stage, the longest first, and those of the device by mode."""

    stages_ns: Mapping[str, int]
    device_ns: Mapping[str, int]

    @property
    def total_ns(self) -> int:
        """The loop's time."""
        return sum(self.stages_ns.values())


def scheduler_loop(run: ServedRun) -> SchedulerLoop | None:
    """The loop between two readings of ``/metrics``; ``None`` where the server does not count it."""
    stages, device = _grown(run, _STAGES), _grown(run, _FORWARD)
    return SchedulerLoop(stages, device) if stages or device else None


def _grown(run: ServedRun, prefix: str) -> dict[str, int]:
    names = [name for name in (run.after.values if run.after is not None else ()) if name.startswith(prefix)]
    grown = {name.removeprefix(prefix): nanoseconds(run.counted(name) or 0.0) for name in names}
    return dict(sorted(((name, time) for name, time in grown.items() if time), key=lambda one: (-one[1], one[0])))
