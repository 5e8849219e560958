"""Limits of a gain that are known without the replay: work that a remedy leaves on a device still takes its time.

A speed-up that keeps the device's work is at most window / busy of the same window, one of communication at most window
/ compute. A candidate that claims more is an error of ours: it is reported as a failure and left out.
"""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.candidate import Replayed, Sampled, Weighed
from whystall.diagnosis.case import Case
from whystall.diagnosis.gains import MOST_SAVED, scaled, speedup

# Families of causes whose removal keeps a device's work.
_OF_HOST: Final = ("host.", "input.", "episodic.")
# Many recordings have times in whole microseconds: this is their error in a window of some hundred events.
_ROUNDED: Final = 0.005


def most_saved(case: Case, candidate: Replayed | Sampled) -> float:
    """The largest share of a step that a candidate can save; 1 where nothing limits it.

    For samples it is the part of a measured step beyond the device work of the recorded steps. An episode may be a
    larger part of a usual step than of those in the window.
    """
    if case.graph is None:
        return 1.0
    weight = 1.0
    if isinstance(candidate, Replayed):
        whole = case.window_ns
        stays = case.left_on_devices_ns(candidate.removal)
        if candidate.recurrence is not None:
            weight = max(candidate.recurrence.weight(case.steps), 1.0)
    else:
        whole = candidate.step_ns or case.step_ns
        known = candidate.removal is not None or candidate.cause.startswith(_OF_HOST)
        stays = case.left_on_devices_ns(candidate.removal) // max(case.steps, 1) if known else 0
    return scaled(1 - min(stays / whole, 1.0), weight) if whole > 0 else 1.0


def broken(case: Case, one: Weighed) -> str | None:
    """The sentence on a weighed candidate that claims more than its limit; ``None`` for one within it."""
    candidate = one.candidate
    if not isinstance(candidate, Replayed | Sampled):
        return None
    most = most_saved(case, candidate)
    if one.expected <= most + _ROUNDED * (1 - most) or one.expected <= 0:
        return None
    claimed, limit = speedup(one.expected), speedup(min(most, MOST_SAVED))
    return (
        f"whystall computed a gain of {claimed:.2f} for {candidate.cause}, but the devices' own work allows at most "
        f"{limit:.2f}: this is an error in whystall, and the finding is left out"
    )
