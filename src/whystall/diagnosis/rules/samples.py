"""What rules on samples share: which runs may name a cause, and the interval of a share of their time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from whystall.analysis.results import RunSummary, SampledLine
from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS, Case
from whystall.diagnosis.finding import CodeLocation
from whystall.diagnosis.rule import CPU_ERROR, Candidate

SPREAD: Final = 0.1
"""The share of the expected saving that a remedy may fail to bring, where nothing better is known."""
NINE_IN_TEN: Final = 1.645
"""Nine in ten of a normal distribution lie within so many standard deviations."""
AWAITS: Final = re.compile(r":(select|_?poll|wait|acquire|join|get|put)$")
"""Innermost functions in which a thread waits for others of its own accord."""
_MOST_UNSURE: Final = 0.15


def measured_runs(case: Case) -> list[RunSummary]:
    """The runs whose samples may name a cause."""
    if any(rank.on_device for rank in case.ranks):
        return []
    return [run for run in case.runs if run.measured >= FEWEST_SAMPLED_STEPS]


def from_samples(
    cause: str,
    run: RunSummary,
    share: float,
    saved: tuple[float, float, float] | None = None,
    part: str = "",
    **more: object,
) -> Candidate:
    """A candidate that removes a share of the measured time: at least, as expected, at most.

    ``part`` is what it was measured of: how far a share is known depends on how its time is spread over the steps.
    """
    low, expected, high = saved or (share * (1 - SPREAD), share, share + (1 - share) * SPREAD * share)
    low = min(low, max(expected - NINE_IN_TEN * run.share_errors.get(part, 0.0), 0.0))
    unsure = _unsure(run) + CPU_ERROR
    values = {
        "saved": (low * (1 - unsure), expected, 1 - (1 - high) / (1 + unsure)),
        "method": "samples: its share of the steps' time",
        "confidence": 0.85,
        "ranks": (run.rank,),
        "attributed_ns": round(share * run.mean_ns),
        "step_ns": round(run.mean_ns),
        **more,
    }
    return Candidate(cause=cause, **values)  # type: ignore[arg-type]


def _unsure(run: RunSummary) -> float:
    """How far the mean step is known: so much of it lies within nine in ten of such means, by how much steps differ."""
    steps = np.array(run.durations_ns[run.warm_up :], np.float64)
    if len(steps) < FEWEST_SAMPLED_STEPS:
        return _MOST_UNSURE
    spread = float(steps.std()) / max(float(steps.mean()), 1.0)
    return float(min(NINE_IN_TEN * spread / np.sqrt(run.measured), _MOST_UNSURE))


def code_of_places(places: list[SampledLine]) -> tuple[CodeLocation, ...]:
    """The lines found most often."""
    sums: dict[tuple[str, int, str], float] = {}
    for place in places:
        key = (place.file, place.line, place.text or place.function)
        sums[key] = sums.get(key, 0.0) + place.share
    ordered = sorted(sums, key=lambda key: (-sums[key], key))[:3]
    return tuple(CodeLocation(file=file, line=line, symbol=symbol) for file, line, symbol in ordered)


def places_where(run: RunSummary, test: Callable[[SampledLine], bool]) -> list[SampledLine]:
    """The places of a run that pass a test."""
    return [place for place in run.places if test(place)]


def share_of(places: list[SampledLine]) -> float:
    """The share of the looks that found one of some places."""
    return sum(place.share for place in places)
