"""Ranks that get inputs of different size: in each step another one has most to compute, and all wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import COMMUNICATION, COMPUTE
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import EXCHANGE, are, collectives, has_stages
from whystall.diagnosis.detectors.kernels import durations
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_UNEQUAL: Final = CAUSE.threshold("unequal")
_ALIKE: Final = CAUSE.threshold("alike")
_ALWAYS: Final = CAUSE.threshold("always")
_LEAST_STEPS: Final = int(CAUSE.threshold("least_steps"))


def in_trace(case: Case) -> Iterator[Replayed]:
    """Ranks whose arithmetic, by recorded shapes, differs within a step as much as the time it takes."""
    ranks = [rank for rank in case.ranks if rank.on_device]
    steps = min((len(rank.trace.steps) for rank in ranks), default=0)
    if len(ranks) < 2 or len(ranks) < len(case.ranks) or steps < _LEAST_STEPS or not _data_parallel(case):
        return
    work = np.array([_per_step(rank, rank.workings.flops(), steps) for rank in ranks])[:, 1:-1]
    time = np.array([_per_step(rank, durations(rank), steps) for rank in ranks])[:, 1:-1]
    if not work.all() or not time.all():
        return
    unequal = float(np.median(work.std(axis=0) / work.mean(axis=0)))
    # What a rank's steps have in common (its device, its model's share) is no matter of inputs.
    follows = _correlation(work / work.mean(axis=0), time / time.mean(axis=0))
    # The same rank in nearly all steps is a straggler, which says more: what is in its data or its device.
    most = np.bincount(work.argmax(axis=0)).max() / work.shape[1]
    if unequal >= _UNEQUAL and follows >= _ALIKE and most < _ALWAYS:
        yield _balanced(case, ranks, unequal, follows)


def _data_parallel(case: Case) -> bool:
    """Whether all ranks do the same to their own inputs: no stages, and nothing exchanged among experts."""
    found = [collectives(case, rank) for rank in case.ranks]
    return not has_stages(case) and all(len(one.node) and not are(one, EXCHANGE).any() for one in found)


def _per_step(rank: RankCase, amounts: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """What the compute kernels of each step have together."""
    step = rows_of(rank.trace.device_events["step"])
    chosen = (step >= 0) & (rank.workings.classified.class_of == COMPUTE)
    return np.bincount(step[chosen], weights=amounts[chosen], minlength=steps)[:steps].astype(np.float64)


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    if one.std() == 0 or other.std() == 0:
        return 0.0
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


def _balanced(case: Case, ranks: list[RankCase], unequal: float, follows: float) -> Replayed:
    """Compute of ranks that have more than the mean of a step takes as long as the mean; the others wait less."""
    graph = case.replayed
    steps = min(len(rank.trace.steps) for rank in ranks)
    time = np.array([_per_step(rank, durations(rank), steps) for rank in ranks])
    factor = np.minimum(time.mean(axis=0) / np.maximum(time, 1), 1.0)
    duration = graph.duration.astype(np.float64)
    for rank, factors in zip(ranks, factor, strict=True):
        step = rows_of(rank.trace.device_events["step"])
        computes = (rank.workings.classified.class_of != COMMUNICATION) & (step >= 0) & (step < steps)
        scale = np.where(computes, factors[np.clip(step, 0, steps - 1)], 1.0)
        duration *= case.device_values(rank, scale, 1.0)
    late = time.max(axis=0).sum() - time.mean(axis=0).sum()
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=int(late) // max(steps, 1),
        evidence=(
            evidence.share("standard deviation of the ranks' arithmetic within a step, of its mean", unequal),
            evidence.share("correlation of a rank's arithmetic with its compute time", follows),
            evidence.time("the rank with most computes longer than the mean", int(late) // max(steps, 1), per="step"),
        ),
        removal=Change(duration=np.floor(duration).astype(np.int64)),
        method="replay: in each step, no rank computes longer than the mean of the ranks",
        ranks=tuple(rank.rank for rank in ranks),
        uncertainty=0.3,
        confidence=0.9,
        rivals=("communication.straggler", "communication.exposed"),
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "several_ranks", "device_events", "steps", "operators", "shapes")),))
