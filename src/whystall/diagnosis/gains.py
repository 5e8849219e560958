"""The arithmetic of gains: shares of a step that are saved, and the speed-ups that they make."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import Severity
from whystall.replay.graph import Change

MOST_SAVED: Final = 0.9999
"""Largest share of a step that may go away."""

MODEL_ERROR: Final = 0.02
"""Gains of known causes came within this share of the real gain of their removal (docs, "Accuracy")."""

REMOVED_ERROR: Final = 0.1
"""A removal may bring this much more than replayed, beside `MODEL_ERROR`: some dependencies are guessed from times, and
vanish with the removed work (docs, "Accuracy of the diagnosis", recorded steps with new durations).
"""

CPU_ERROR: Final = 0.1
"""The same for jobs without an accelerator: the rest of a step shares caches, cores and clocks with the removed part,
and the gain of one and the same fault, measured hours apart on a shared machine, differed by this much (docs, "Accuracy
of the diagnosis").
"""

CPU_MORE: Final = 0.18
"""The rest of a step may become this much shorter there: the removed part no longer evicts it from caches, nor makes
the system clear memory for it. One in four of 75 jobs of three authors gained more than `CPU_ERROR` allows.
"""

_SEVERITIES: Final[tuple[tuple[float, Severity], ...]] = ((0.20, "critical"), (0.10, "major"), (0.03, "minor"))


def scaled(saved: float, factor: float) -> float:
    """The share saved when the time to save is ``factor`` times as long, relative to the rest.

    >>> scaled(0.5, 1.0), scaled(0.5, 3.0)
    (0.5, 0.75)
    """
    saved = min(saved, MOST_SAVED)
    ratio = saved / (1 - saved) * factor
    return ratio / (1 + ratio)


def saved_by(case: Case, change: Change | None, before_ns: int) -> float:
    """The share of ``before_ns`` that a change of the graph saves; nothing without one."""
    if change is None:
        return 0.0
    return min(max(1 - case.length_ns(change) / before_ns, 0.0), MOST_SAVED)


def together(case: Case, one: Change | None, other: Change | None) -> Change | None:
    """Two changes of the graph at once; one of them where there is but one."""
    if one is None or other is None:
        return other if one is None else one
    return one.then(other, case.replayed)


def speedup(saved: float) -> float:
    """How many times as fast a step is without a share of it.

    >>> speedup(0.5)
    2.0
    """
    return round(1 / (1 - min(saved, MOST_SAVED)), 4)


def severity_of(saved: float) -> Severity:
    """The severity of a cause by the share of speed that its removal adds (reference: causes.md)."""
    gained = 1 / (1 - min(saved, MOST_SAVED)) - 1
    return next((name for limit, name in _SEVERITIES if gained >= limit), "info")


def percent(share: float) -> str:
    """A share in per cent.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{share * 100:.1f} %"
