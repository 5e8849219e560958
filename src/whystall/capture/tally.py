"""The count of repeated work in some steps, and its description."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from whystall.capture.stacks import is_library, shown_file, text_of
from whystall.run_folder.observations import RepeatedModule, RepeatedWork

_MOST_FRAMES: Final = 60
_MOST_TOLD: Final = 3

Place = tuple[str, str, int, str]
"""The callee, and its place: file, line, function."""


@dataclass(slots=True)
class Tally:
    """Time of calls that came out as before, by their places; ``fresh`` counts those that did not."""

    again: Counter[Place] = field(default_factory=Counter)
    calls: int = 0
    fresh: int = 0
    differentiated_ns: int = 0
    """Time of those of the calls that gradients go back through."""
    shared_ns: int = 0
    """Time of those of them that were given tokens which begin as those of the call before."""
    ours_ns: int = 0
    """Time of our own examination in the current step."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Repeated work and duration of each step that counts."""

    @property
    def measured_ns(self) -> int:
        """The length of the steps that count."""
        return sum(duration for _, duration in self.steps)

    def forget(self) -> None:
        """Counts from here on."""
        self.again.clear()
        self.calls = self.fresh = self.differentiated_ns = self.shared_ns = 0

    def step_ended(self, duration_ns: int) -> None:
        """A step that counts is over."""
        self.steps.append((sum(self.again.values()) - sum(again for again, _ in self.steps), duration_ns))

    def told(self) -> RepeatedWork | None:
        """The repeated work; ``None`` where no new data came in.

        Repeating one batch, to measure a model, is intended there.
        """
        again_ns, measured_ns = sum(self.again.values()), self.measured_ns
        if not again_ns or not self.fresh or measured_ns <= 0:
            return None
        share, count = again_ns / measured_ns, len(self.steps)
        beside = sum((again - share * duration) ** 2 for again, duration in self.steps)
        ordered = sorted(self.again.items(), key=lambda item: (-item[1], item[0]))
        return RepeatedWork(
            steps=count,
            calls=self.calls,
            again_ns=again_ns,
            differentiated_ns=self.differentiated_ns,
            shared_ns=self.shared_ns,
            measured_ns=measured_ns,
            error=(beside * count / max(count - 1, 1)) ** 0.5 / measured_ns,
            modules=[
                RepeatedModule(name, shown_file(file), line, function, text_of(file, line), ns)
                for (name, file, line, function), ns in ordered[:_MOST_TOLD]
            ],
        )


def place_of(name: str, frame: FrameType) -> Place:
    """The user's line that calls something, the innermost one at or above ``frame``."""
    found = frame
    above: FrameType | None = frame
    for _ in range(_MOST_FRAMES):
        if above is None:
            break
        ours = above.f_globals.get("__name__", "").startswith("whystall.")
        if not ours and not is_library(above.f_code.co_filename):
            found = above
            break
        above = above.f_back
    return name, found.f_code.co_filename, found.f_lineno, found.f_code.co_name
