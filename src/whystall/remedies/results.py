"""The attempts and the result of ``whystall fix``: its schema."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from whystall.analysis.paired import Interval
from whystall.verify.tune.results import Losses

SCHEMA: Final = "whystall.fix/1"
BUSY_CORES: Final = 0.5
"""Where other programs keep this number of cores busy, a rejection says little: the next loop tries again."""

Verdict = Literal["kept", "rejected", "proposed"]
"""``proposed``: not tried, since it may change what is computed, or nothing could show that it does not."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An edit that was tried, and what became of it.

    ``program`` is the digest of the program before it. ``predicted`` is the gain of the cause: least, expected, most.
    Times are seconds of the deciding step (``measured_by`` ``steps``) or of whole runs, in pairs. Memory is the peak of
    the process (resident, KiB), before and after; ``other_cores`` is the mean number of cores that other programs kept
    busy meanwhile.
    """

    edit: str
    cause: str
    says: str
    program: str
    verdict: Verdict
    because: str
    patch: str
    command: list[str] = []
    """The command with its new options; empty where it stays."""
    predicted: tuple[float, float, float] | None = None
    speedup: Interval | None = None
    before_s: list[float] = []
    after_s: list[float] = []
    measured_by: Literal["steps", "runs"] = "steps"
    losses: Losses = "not compared"
    memory_kib: tuple[int, int] | None = None
    other_cores: float | None = None
    risk: str = ""


class Fixes(msgspec.Struct, frozen=True, kw_only=True):
    """The whole loop. ``speedup`` is the product of the gains of steps, each measured against the program before it.

    Where no kept edit was measured by steps, it is that of whole runs.
    """

    schema: Literal["whystall.fix/1"] = SCHEMA
    attempts: list[Attempt]
    patch: str
    command: list[str]
    """The command to run from now on; empty where it stays."""
    speedup: Interval | None
    without_edit: list[str]
    """Causes that were found and have no edit that fits the program."""
    ended_because: str
