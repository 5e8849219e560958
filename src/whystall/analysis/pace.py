"""The pace of a job that is running: its latest steps beside its first steady ones, and which part of a step grew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.pace_changes import FEWEST, means_in_a_row
from whystall.vocabulary.step_parts import OTHER, TIMED

Parts = dict[str, NDArray[np.int64]]
"""Per part of a step its time in each of some steps, in nanoseconds; under ``step`` the whole."""

STEP: Final = "step"
# A job is slower where nearly all of its latest steps are longer than nearly all of its first ones, by this factor.
_SLOWER: Final = 1.1
_NEARLY_ALL: Final = 0.25
# Computation takes up to half as long again where the machine is slower: its clock, other guests of its host.
_BY_ITSELF: Final = 1.5
_WAITS: Final = ("input", "save", "gc")
"""The parts in which a job does not compute for its model."""
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Pace:
    """The median of the latest steps and its parts; and a comparison with the first ones, where they are slower."""

    steps: int
    """How many the latest are."""
    median_ns: int
    shares: dict[str, float]
    in_a_row_ns: float
    """The median of the means of a few consecutive latest steps: it includes events of every second or third step."""
    ratio: float
    """The same, relative to the first steps."""
    slower: bool
    computes: bool
    """Whether the excess is compute, and less than half as long again, as on a machine that is slower."""
    grown: str | None
    """The part with most of the excess."""
    grown_ns: int


def pace_of(first: Parts, latest: Parts) -> Pace | None:
    """The pace of some latest steps against some first ones; ``None`` while there are too few."""
    if min(len(first[STEP]), len(latest[STEP])) < FEWEST:
        return None
    now, before = (means_in_a_row(steps[STEP]) for steps in (latest, first))
    whole = max(int(latest[STEP].sum()), 1)
    shares: dict[str, float] = {part: int(latest[part].sum()) / whole for part in TIMED if part in latest}
    shares[OTHER] = max(0.0, 1.0 - sum(shares.values()))
    ratio = float(np.median(now)) / max(float(np.median(before)), 1.0)
    apart = np.quantile(now, _NEARLY_ALL) > np.quantile(before, 1 - _NEARLY_ALL)
    grown = {part: _mean(latest, part) - _mean(first, part) for part in (*shares,)}
    most = max(grown, key=lambda part: (grown[part], part))
    slower = bool(ratio >= _SLOWER and apart)
    return Pace(
        steps=len(latest[STEP]),
        median_ns=round(float(np.median(latest[STEP]))),
        shares=shares,
        in_a_row_ns=float(np.median(now)),
        ratio=ratio,
        slower=slower,
        computes=slower and ratio < _BY_ITSELF and not _waits(grown),
        grown=most if slower else None,
        grown_ns=round(grown[most]) if slower else 0,
    )


def _waits(grown: Mapping[str, float]) -> bool:
    """Whether the growth is mostly waiting for input, saving or collecting."""
    return sum(grown[part] for part in _WAITS if part in grown) >= _MOSTLY * sum(grown.values())


def _mean(parts: Parts, part: str) -> float:
    if part != OTHER:
        return float(parts[part].mean())
    return float(parts[STEP].mean()) - sum(float(parts[one].mean()) for one in TIMED if one in parts)
