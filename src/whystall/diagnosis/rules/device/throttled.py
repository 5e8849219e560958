"""The same kernels take longer in some steps than in others, all of them by about as much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import COMPUTE
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.kernels import durations, shortened
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Mask
from whystall.trace.columns import codes
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_THROTTLED: Final = CAUSE.threshold("throttled")
_LEAST_REPEATS: Final = CAUSE.threshold("least_repeats")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Steps in which the median kernel is slower than the best of its like."""
    for rank in case.ranks:
        work = rank.workings
        step = rows_of(rank.trace.device_events["step"])
        computes = (step >= 0) & (work.could_use_tensor_cores | (work.family != ""))
        computes &= work.classified.class_of == COMPUTE
        if len(rank.trace.steps) < _LEAST_REPEATS or not computes.any():
            continue
        ratio = _over_own_best(rank, computes)
        slow = [_median_ratio(ratio[step == number]) for number in range(len(rank.trace.steps))]
        steps = [number for number, value in enumerate(slow) if value >= _THROTTLED]
        if steps:
            chosen = computes & np.isin(step, steps) & np.isfinite(ratio)
            yield _at_usual_pace(case, rank, chosen, steps, np.array(slow))


def _at_usual_pace(case: Case, rank: RankCase, chosen: Mask, steps: list[int], slow: NDArray[np.float64]) -> Replayed:
    step = rows_of(rank.trace.device_events["step"])
    factor = np.where(np.isin(np.arange(len(slow)), steps), slow, 1.0)
    duration = durations(rank)
    target = np.where(chosen, duration / factor[np.maximum(step, 0)], duration)
    nodes = case.nodes(rank, device=chosen)
    names = rank.trace.steps["name"].to_list()
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=case.time_of(nodes) - case.time_of(nodes) * len(steps) // max(int(sum(factor[steps])), 1),
        evidence=(
            evidence.count("steps in which kernels are slower than their own best", len(steps), case.events_of(nodes)),
            evidence.share("slower by, in the median of those steps", float(np.median(factor[steps])) - 1),
        ),
        removal=shortened(case, rank, chosen, target),
        method="replay: the slow steps' kernels at their own pace in the others",
        ranks=(rank.rank,),
        steps=tuple(names[number] for number in steps[:20]),
        uncertainty=0.15,
        confidence=0.8,
        missing=("clocks and throttle reasons (NVML)",),
        rivals=("communication.straggler",),
    )


def _over_own_best(rank: RankCase, computes: Mask) -> NDArray[np.float64]:
    """Per event its duration over the best of its like: of the same name and grid, of which there are enough."""
    events = rank.trace.device_events
    duration = durations(rank)
    key = codes(events["name"]).astype(np.int64)
    grid = events["grid"].fill_null("").cast(str).hash(0).to_numpy() if "grid" in events.columns else key * 0
    key = key * 1_000_003 + (grid % 1_000_003).astype(np.int64)
    best, count = _own_best(key, duration, computes)
    return np.where(computes & (count >= _LEAST_REPEATS) & (best > 0), duration / np.maximum(best, 1), np.nan)


def _median_ratio(ratio: NDArray[np.float64]) -> float:
    return float(np.nanmedian(ratio)) if np.isfinite(ratio).any() else 1.0


def _own_best(
    key: NDArray[np.int64], duration: NDArray[np.float64], chosen: Mask
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Per event a low quantile of the durations of its like, and how many there are."""
    best = np.zeros(len(key))
    count = np.zeros(len(key), np.int64)
    rows = np.flatnonzero(chosen)
    order = rows[np.lexsort((duration[rows], key[rows]))]
    if not len(order):
        return best, count
    starts = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
    lengths = np.diff(np.append(starts, len(order)))
    low = duration[order[starts + lengths // 10]]
    best[order] = np.repeat(low, lengths)
    count[order] = np.repeat(lengths, lengths)
    return best, count


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "steps")),))
