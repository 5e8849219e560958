"""The same kernels take longer in some steps than in others, all of them by about the same factor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import COMPUTE
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.kernels import durations, share_beside, shortened
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Mask
from whystall.trace.columns import codes
from whystall.trace.link import rows_of
from whystall.trace.steps import is_of_an_engine

CAUSE: Final = cause_beside(__name__)
_THROTTLED: Final = CAUSE.threshold("throttled")
_BY_CHANCE: Final = CAUSE.threshold("by_chance")
# Quantile of the steps' slowdowns that counts as the usual pace.
_USUAL: Final = 0.1
# An event is alone on its device if others run for no more than this share of it.
_BESIDE: Final = 0.05
_TWO_LEVELS: Final = CAUSE.threshold("two_levels")
_FAR_APART: Final = CAUSE.threshold("far_apart")
_LEAST_SCATTER: Final = 0.005
_LEAST_REPEATS: Final = CAUSE.threshold("least_repeats")
_LEAST_SAMPLES: Final = CAUSE.threshold("least_samples")
_HELD_BACK: Final = CAUSE.threshold("held_back")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Steps in which the median kernel is slower than the best of its like."""
    for rank in case.ranks:
        work = rank.workings
        step = rows_of(rank.trace.device_events["step"])
        computes = (step >= 0) & (work.could_use_tensor_cores | (work.family != ""))
        computes &= work.classified.class_of == COMPUTE
        if len(rank.trace.steps) < _LEAST_REPEATS or not computes.any() or is_of_an_engine(rank.trace.steps_from):
            continue  # kernels of prompts take longer than those of single tokens
        ratio = _over_own_best(rank, computes & _alone(rank))
        slow = np.array([_quantile(ratio[step == number], 0.5) for number in range(len(rank.trace.steps))])
        slow /= np.quantile(slow, _USUAL)  # kernels that scatter are slower than their best in all steps
        steps = np.flatnonzero(slow >= _THROTTLED).tolist()
        if steps and _persists(steps, len(slow), apart=_apart(slow, steps)) and _slows_all(ratio[np.isin(step, steps)]):
            slowed = (work.classified.class_of == COMPUTE) & np.isin(step, steps)
            yield _with_clocks(case, rank, _at_usual_pace(case, rank, slowed, steps, slow))


def _with_clocks(case: Case, rank: RankCase, found: Replayed) -> Replayed:
    """The same with the run's clocks: that they dropped, or that they did not."""
    devices = set(rank.trace.device_events["device"].to_list())
    clocks = [
        each
        for run in case.runs
        if run.rank == rank.rank
        for each in run.clocks
        if each.device in devices and each.samples >= _LEAST_SAMPLES
    ]
    if not clocks:
        return found
    lowest = min(clocks, key=lambda each: each.low_mhz / max(each.median_mhz, 1))
    told = (
        *found.evidence,
        evidence.text(
            "the clock while busy, usually and at its lowest tenth", f"{lowest.median_mhz} and {lowest.low_mhz} MHz"
        ),
        evidence.share("of the samples in which the device held its clock back for heat or power", lowest.held_back),
    )
    if lowest.held_back >= _HELD_BACK or lowest.median_mhz >= _THROTTLED * lowest.low_mhz:
        return replace(found, evidence=told, confidence=0.9, missing=(), could_be=())
    return replace(
        found,
        evidence=told,
        confidence=0.5,
        nameless=True,
        missing=(),
        could_be=("device.degraded",),
        if_hidden="kernels are slower in some steps than in others, although the device's clock held: something else "
        "uses the device, its memory runs slower, or data differ",
    )


def _alone(rank: RankCase) -> Mask:
    """Which events run while no other stream of theirs does anything: beside a collective any kernel is slower."""
    alone: Mask = share_beside(rank, np.ones(len(rank.trace.device_events), np.bool_)) <= _BESIDE
    return alone


def _apart(slow: NDArray[np.float64], steps: list[int]) -> float:
    """The gap between slow steps and the others, relative to the larger spread within either group.

    Scattered steps have all values between, and some are always slow: 0 where the gap is below half of the difference.
    """
    low, others = slow[steps], np.delete(slow, steps)
    between = float(low.min() - others.max(initial=1.0))
    if between < (float(np.median(low)) - float(np.median(others))) / 2:
        return 0.0
    return between / max(float(np.ptp(low)), float(np.ptp(others)) if len(others) else 0.0, _LEAST_SCATTER)


def _persists(steps: list[int], count: int, *, apart: float) -> bool:
    """Whether slow steps follow each other more than chance would have them: clocks stay low for a while.

    At most ``_BY_CHANCE`` of all orders of these steps have equally few stretches. A few steps that follow each other
    and lie very far from all others are no chance either.
    """
    slow, stretches = len(steps), 1 + sum(b - a > 1 for a, b in pairwise(steps))
    alike = sum(comb(slow - 1, few - 1) * comb(count - slow + 1, few) for few in range(1, stretches + 1))
    if alike <= _BY_CHANCE * comb(count, slow):
        return apart >= _TWO_LEVELS
    return apart >= _FAR_APART and slow > 1 and stretches == 1


def _slows_all(ratio: NDArray[np.float64]) -> bool:
    """Whether nearly all kernels of the slow steps are slower, by about the same factor."""
    return _quantile(ratio, 0.25) - 1 >= (_quantile(ratio, 0.5) - 1) / 2


def _at_usual_pace(case: Case, rank: RankCase, chosen: Mask, steps: list[int], slow: NDArray[np.float64]) -> Replayed:
    step = rows_of(rank.trace.device_events["step"])
    factor = np.where(np.isin(np.arange(len(slow)), steps), slow, 1.0)
    duration = durations(rank)
    target = np.where(chosen, duration / factor[np.maximum(step, 0)], duration)
    nodes = case.nodes(rank, device=chosen)
    names = rank.trace.steps["name"].to_list()
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=round(case.time_of(nodes) * (1 - len(steps) / float(factor[steps].sum()))),
        evidence=(
            evidence.count("steps in which kernels are slower than their own best", len(steps), case.events_of(nodes)),
            evidence.share("slower by, in the median of those steps", float(np.median(factor[steps])) - 1),
        ),
        removal=shortened(case, rank, chosen, target),
        method="replay: the slow steps' kernels at their own pace in the others",
        ranks=(rank.rank,),
        steps=tuple(names[number] for number in steps[:20]),
        uncertainty=0.15,
        confidence=0.88,
        missing=("clocks and throttle reasons (NVML)",),
        could_be=("device.degraded",),
        rivals=("communication.straggler",),
    )


def _over_own_best(rank: RankCase, computes: Mask) -> NDArray[np.float64]:
    """The duration of each event over the best of its kind: those of the same name and grid, if there are enough."""
    events = rank.trace.device_events
    duration = durations(rank)
    key = codes(events["name"]).astype(np.int64)
    grid = events["grid"].fill_null("").cast(str).hash(0).to_numpy() if "grid" in events.columns else key * 0
    key = key * 1_000_003 + (grid % 1_000_003).astype(np.int64)
    best, count = _own_best(_by_place(key, rows_of(events["step"]), len(rank.trace.steps)), duration, computes)
    return np.where(computes & (count >= _LEAST_REPEATS) & (best > 0), duration / np.maximum(best, 1), np.nan)


def _by_place(key: NDArray[np.int64], step: NDArray[np.int32], steps: int) -> NDArray[np.int64]:
    """Keys of events that most steps have equally often, distinguished by their place in the step.

    A step repeats the one before it: its third product has the size of that one's third, and not of its first.
    """
    order = np.lexsort((np.arange(len(key)), step, key))
    new = np.append(True, (np.diff(key[order]) != 0) | (np.diff(step[order]) != 0))
    group = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    place = np.arange(len(key)) - first[group]
    kinds, kind = np.unique(key[order][first], return_inverse=True)
    often: list[Counter[int]] = [Counter() for _ in kinds]
    for each, times, at in zip(kind.tolist(), np.bincount(group).tolist(), step[order][first].tolist(), strict=True):
        if at >= 0:
            often[each][times] += 1
    alike = np.array([2 * max(times.values(), default=0) > steps for times in often], np.bool_)
    out = np.empty(len(key), np.int64)
    out[order] = kind[group] * (int(place.max(initial=0)) + 2) + np.where(alike[kind[group]], place + 1, 0)
    return out


def _quantile(ratio: NDArray[np.float64], quantile: float) -> float:
    return float(np.nanquantile(ratio, quantile)) if np.isfinite(ratio).any() else 1.0


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
