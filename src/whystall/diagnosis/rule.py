"""What a rule is, and what it proposes: a cause with its evidence, and what the run would be without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import CodeLocation, Evidence
from whystall.replay.graph import Change

Signal = Literal[
    "trace",
    "device",
    "cpu_only",
    "launch_calls",
    "operators",
    "steps",
    "shapes",
    "stacks",
    "memory",
    "several_ranks",
    "samples",
    "peak",
]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How often something happened in the replayed window, and how many steps lie between two times (if known)."""

    count: int
    period: float | None

    def weight(self, steps: int) -> float:
        """How often it happens in so many steps on average, against how often it did in this window."""
        return steps / self.period / self.count if self.period is not None and self.count else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A cause that may be at work. What it is worth is either replayed (changes) or modelled (shares of the step).

    ``ceiling`` removes the cause wholly, ``expected`` as its remedy would. ``saved`` gives the same as shares of the
    step that go away (floor, expected, ceiling), for causes that only samples show.
    """

    cause: str
    attributed_ns: int
    evidence: tuple[Evidence, ...]
    expected: Change | None = None
    ceiling: Change | None = None
    least: Change | None = None
    """What the remedy brings at the very least, where that is known better than by ``uncertainty``."""
    saved: tuple[float, float, float] | None = None
    method: str = ""
    step_ns: int | None = None
    """The length of the step that ``saved`` is a share of; ``None``: the replayed one."""
    code: tuple[CodeLocation, ...] = ()
    ranks: tuple[int, ...] = ()
    steps: tuple[str, ...] = ()
    most: float = 1.0
    """The share of the step that all of it takes at most, where samples of the whole run tell."""
    uncertainty: float = 0.15
    """The share of the expected saving that the remedy may fail to bring."""
    confidence: float = 0.9
    tier: int = 0
    """A general cause (1, 2, ...) explains what more specific ones leave; it ranks by what it adds to them."""
    recurrence: Recurrence | None = None
    """For what does not happen in every step."""
    rivals: tuple[str, ...] = ()
    """Causes with the same symptom, which were weighed against this one."""
    missing: tuple[str, ...] = ()
    could_be: tuple[str, ...] = ()
    """Causes that it cannot be told from while these signals are missing."""
    standing: Literal["info", "minor", "major", "critical"] | None = None
    """The severity of what is told without a gain, since it costs something else than time."""
    hidden: str | None = None
    """What to say when it is large, yet its removal gains nothing; ``None``: nothing."""
    unnamed: bool = False
    """It takes time and what it is cannot be told: it is said so (``hidden``), and others count for what they add to it."""
    detail: str = ""
    """What the title adds in this case."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause, the signals it needs, and the function that looks for it."""

    cause: str
    needs: tuple[Signal, ...]
    find: Callable[[Case], Iterable[Candidate]]


MODEL_ERROR: Final = 0.02
"""Gains of causes that were known came within this share of what their removal brought (docs, "Accuracy")."""

CPU_ERROR: Final = 0.1
"""The same for jobs without an accelerator: what stays of a step shares caches, cores and clocks with what goes, and the
gain of one and the same fault, measured hours apart on a shared machine, differed by as much (docs, "Accuracy of the
diagnosis")."""

RULES_GROUP: Final = "whystall.rules"
"""The entry point by which other packages bring rules: a `Rule`, or several."""

MISSING: dict[Signal, str] = {
    "trace": "a trace that is whole",
    "device": "device events",
    "cpu_only": "a job without an accelerator",
    "launch_calls": "launch calls",
    "operators": "operators",
    "steps": "step marks",
    "shapes": "operator shapes",
    "stacks": "Python stacks",
    "memory": "memory events",
    "several_ranks": "traces of several ranks",
    "samples": "samples of the whole run",
    "peak": "the device's peaks",
}


def available(case: Case) -> frozenset[Signal]:
    """The signals that a case has. A trace of which nothing can be replayed is none."""
    found: set[Signal] = set()
    if case.runs:
        found.add("samples")
    if not case.ranks or case.graph is None:
        return frozenset(found)
    found.add("trace")
    if len(case.ranks) > 1:
        found.add("several_ranks")
    signals = [rank.analysis.signals for rank in case.ranks]
    named: tuple[tuple[str, Signal], ...] = (
        ("device_events", "device"),
        ("launch_calls", "launch_calls"),
        ("operators", "operators"),
        ("steps", "steps"),
        ("shapes", "shapes"),
        ("python_stacks", "stacks"),
        ("memory", "memory"),
    )
    for key, signal in named:
        if any(rank.get(key) for rank in signals):
            found.add(signal)
    if "device" not in found:
        found.add("cpu_only")
    if any(row.peak is not None for rank in case.ranks for row in rank.analysis.efficiency):
        found.add("peak")
    return frozenset(found)
