"""A case: a job with a fault, the causes it should be told, and the same job cured of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.accuracy.simulator.job import Job


@dataclass(frozen=True, slots=True)
class Case:
    """One job whose truth is known."""

    name: str
    job: Job
    cured: Mapping[str, Job] = field(default_factory=dict)
    """By cause: the same job without it. Empty for a healthy job."""
    all_cured: Job | None = None
    """Without any of them, where there are several."""
    rank: int | None = None
    """The rank that is at fault, where one is."""
    accepted: tuple[str, ...] = ()
    """Other ids that name the same fault."""
    resists: tuple[str, ...] = ()
    """What a naive reading would blame; a decoy has some."""
    undisguised: Job | None = None
    """A decoy without what looks like a fault: it must not be faster by more than 2 %."""
    additive: bool = True
    """The fault only adds work or waiting: without it no step is longer."""
    quick: bool = False
    """Part of the subset that CI runs."""
    note: str = ""

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes that are there."""
        return tuple(self.cured)

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.cured


@dataclass(frozen=True, slots=True)
class Truth:
    """What a case's runs say."""

    case: Case
    step_ns: float
    cured_step_ns: Mapping[str, float]
    all_cured_step_ns: float | None

    def as_json(self) -> dict[str, Any]:
        """The contents of ``truth.json``."""
        gains = {cause: self.step_ns / cured for cause, cured in self.cured_step_ns.items()}
        # What a naive reading would name first is what gains most.
        return {
            "name": self.case.name,
            "causes": sorted(gains, key=lambda cause: -gains[cause]),
            "accepted": list(self.case.accepted),
            "removed_speedup": {cause: round(gain, 6) for cause, gain in gains.items()},
            "all_removed_speedup": round(self.step_ns / self.all_cured_step_ns, 6) if self.all_cured_step_ns else None,
            "rank": self.case.rank,
            "healthy": self.case.healthy,
            "resists": list(self.case.resists),
            "step_ns": round(self.step_ns),
            "note": self.case.note,
            "quick": self.case.quick,
        }
