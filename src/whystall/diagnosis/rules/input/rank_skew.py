"""Ranks that get inputs of different size: in each step another one has most to compute, and all wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import COMMUNICATION, COMPUTE
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import EXCHANGE, are, collectives, has_stages, step_of
from whystall.diagnosis.detectors.kernels import durations
from whystall.diagnosis.detectors.samples import from_samples, measured_runs
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_UNEQUAL: Final = CAUSE.threshold("unequal")
_ALIKE: Final = CAUSE.threshold("alike")
_ALWAYS: Final = CAUSE.threshold("always")
_LEAST_STEPS: Final = int(CAUSE.threshold("least_steps"))
_MANY_STEPS: Final = int(CAUSE.threshold("many_steps"))
_OF_ONE_RANK: Final = CAUSE.threshold("of_one_rank")
_USUAL: Final = CAUSE.threshold("usual")
_LEAST_SAVED: Final = CAUSE.threshold("least_saved")
_APART: Final = CAUSE.threshold("apart")
_EXPLAINED: Final = CAUSE.threshold("explained")
_SURE, _AT_MOST = 0.6, 1.2


def in_trace(case: Case) -> Iterator[Replayed]:
    """Ranks whose arithmetic, by recorded shapes, differs within a step by the same share as their time."""
    ranks = [rank for rank in case.ranks if rank.on_device]
    steps = min((len(rank.trace.steps) for rank in ranks), default=0)
    if len(ranks) < 2 or len(ranks) < len(case.ranks) or steps < _LEAST_STEPS or not _data_parallel(case):
        return
    inner = slice(1, -1) if steps >= _MANY_STEPS else slice(None)  # the first and the last may be cut
    work = np.array([_per_step(rank, rank.workings.flops(), steps) for rank in ranks])[:, inner]
    time = np.array([_per_step(rank, durations(rank), steps) for rank in ranks])[:, inner]
    if not work.all() or not time.all():
        return
    unequal = float(np.median(work.std(axis=0) / work.mean(axis=0)))
    # A common factor of a rank's steps (its device, its model's share) does not come from inputs.
    follows = _correlation(work / work.mean(axis=0), time / time.mean(axis=0))
    # The same rank in nearly all steps is a straggler, a more specific cause: its data or its device.
    most = np.bincount(work.argmax(axis=0)).max() / work.shape[1]
    if unequal >= _UNEQUAL and follows >= _ALIKE and most < _ALWAYS:
        yield _balanced(case, ranks, unequal, follows)


def in_samples(case: Case) -> Iterator[Sampled]:
    """The same for a watched job on CPUs: by each rank's time on a core in the same steps.

    That is over the whole run; the recording has to show inputs of different sizes.
    """
    runs = measured_runs(case)
    uneven = next((run.uneven for run in runs), None)
    if len(runs) < 2 or uneven is None or case.graph is None or not _data_parallel(case):
        return
    if not all(_meets_in_each_step(case, rank) for rank in case.ranks):
        return  # as weights that are averaged occasionally: the steps' differences even out until then
    slowest = max(runs, key=lambda run: (run.mean_ns, -run.rank))
    above = uneven.above_ns - uneven.of_one_rank_ns
    # In a few steps it is occasional work, on one rank a straggler.
    if uneven.of_one_rank_ns > _OF_ONE_RANK * uneven.above_ns or uneven.usual_ns < _USUAL * uneven.above_ns:
        return
    if uneven.apart_ns > _APART * uneven.above_ns:
        return  # they do not wait for each other in each step, or number their steps apart
    works = float(np.mean([run.on_cpu_share for run in runs]))
    most, unequal = _unequal_arithmetic(case)
    saved = min(above / max(slowest.mean_ns, 1.0), 1 - works)
    # A difference that inputs do not explain is other work that ranks do in turn.
    if saved < _LEAST_SAVED or unequal < _UNEQUAL or most * works < _EXPLAINED * saved:
        return
    yield from_samples(
        CAUSE.id,
        slowest,
        saved,
        evidence=(
            evidence.time(
                "the rank that works most in a step works above the mean of all", uneven.above_ns, per="step"
            ),
            evidence.time("of it, one and the same rank", uneven.of_one_rank_ns, per="step"),
            evidence.share("standard deviation of the ranks' arithmetic within a recorded step, of its mean", unequal),
        ),
        saved=(saved * _SURE, saved, min(saved * _AT_MOST, 1 - works)),
        ranks=tuple(sorted(run.rank for run in runs)),
        method="samples: in each step, no rank works longer than the mean of the ranks",
        confidence=0.85,
        remedy=CAUSE.remedies["dealt_out"],
        rivals=("communication.straggler", "communication.exposed"),
    )


def _meets_in_each_step(case: Case, rank: RankCase) -> bool:
    """Whether a rank has a collective in each of its recorded steps; the last one goes on after its end."""
    found = step_of(rank, collectives(case, rank))
    return set(range(len(rank.trace.steps) - 1)) <= set(found.tolist())


def _unequal_arithmetic(case: Case) -> tuple[float, float]:
    """The busiest rank's excess arithmetic in a recorded step, and the ranks' standard deviation, over the mean.

    Both for the usual step; 0 where all ranks have products of the same sizes, in any number.
    """
    per_rank, sizes = [], []
    steps = min(len(rank.trace.steps) for rank in case.ranks) - 1  # the last one goes on after its end
    for rank in case.ranks:
        table, work = rank.trace.operators, rank.workings.work
        step = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), table["ts_ns"].to_numpy(), side="right") - 1
        rows = np.flatnonzero((step >= 0) & (step < steps) & (work.dense > 0))
        per_rank.append(np.bincount(step[rows], weights=work.dense[rows], minlength=max(steps, 0)))
        given = zip(step[rows].tolist(), table["input_dims"][rows].cast(str).to_list(), strict=True)
        sizes.append(set(given))
    sums = np.array(per_rank)
    sums = sums[:, sums.all(axis=0)]
    if not sums.size or all(own == sizes[0] for own in sizes):
        return 0.0, 0.0
    mean = sums.mean(axis=0)
    return float(np.median(sums.max(axis=0) / mean - 1)), float(np.median(sums.std(axis=0) / mean))


def _data_parallel(case: Case) -> bool:
    """Whether all ranks do the same to their own inputs: no stages, and nothing exchanged among experts."""
    found = [collectives(case, rank) for rank in case.ranks]
    return not has_stages(case) and all(len(one.node) and not are(one, EXCHANGE).any() for one in found)


def _per_step(rank: RankCase, amounts: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """The sum of an amount over the compute kernels of each step."""
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


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "several_ranks", "device_events", "steps", "operators", "shapes")),
        Finder(in_samples, ("trace", "samples", "no_device", "steps", "operators", "shapes")),
    ),
)
