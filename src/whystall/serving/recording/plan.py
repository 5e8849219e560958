"""The additions to a server's command: flags of its version that record, and why not more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from whystall.serving.recording.command import ServerCommand
from whystall.serving.recording.installed import Installed
from whystall.serving.recording.spans import may_be_sent

__all__ = ["ENDPOINT", "STEPS", "Additions", "additions"]

STEPS: Final = "--enable-logging-iteration-details"
"""A line of log for each engine step (0.32, `engine/arg_utils.py`)."""
ENDPOINT: Final = "--otlp-traces-endpoint"
"""Where a span for each finished request goes (0.32, `engine/arg_utils.py`)."""
_WITHOUT_STATS: Final = "--disable-log-stats"


@dataclass(frozen=True, slots=True)
class Additions:
    """``steps`` and ``spans`` say whether the flags for them are added; ``reason`` is why one of them is not."""

    steps: bool = False
    spans: bool = False
    reason: str = ""

    def flags(self, endpoint: str | None) -> tuple[str, ...]:
        """The words at the end of the command; ``endpoint`` receives the spans."""
        steps = (STEPS,) if self.steps else ()
        return (*steps, ENDPOINT, endpoint) if self.spans and endpoint is not None else steps


def additions(
    words: Sequence[str],
    command: ServerCommand | None,
    installed: Installed | None,
    environment: Mapping[str, str],
) -> Additions:
    """The additions to a command of these words; ``installed`` is the vLLM behind it."""
    if command is None:
        there = any(STEPS in word for word in words)  # within bash -c, or behind docker run
        return Additions(reason="" if there else f"{STEPS} is not added, since the command is no `vllm serve`: add it")
    if command.has(_WITHOUT_STATS):
        return Additions(reason=f"{_WITHOUT_STATS} turns off all that could be recorded: leave it out")
    if installed is None:
        reason = f"{STEPS} is not added, since the vLLM behind the command was not found: add it if yours has it"
        return Additions(reason="" if command.has(STEPS) else reason)
    missing = not command.has(STEPS) and STEPS not in installed.flags
    exports = installed.exports_spans and ENDPOINT in installed.flags and not command.has(ENDPOINT)
    return Additions(
        steps=not command.has(STEPS) and not missing,
        spans=exports and may_be_sent(environment),
        reason=f"{STEPS} is not added, since this version of vLLM has no such flag" if missing else "",
    )
