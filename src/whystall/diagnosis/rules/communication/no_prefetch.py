"""Parameters that are gathered only when their layer is about to run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis import intervals
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import Collectives, are, collectives, spent_ns, step_of, transfer_ns
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change, Mask

CAUSE: Final = cause_beside(__name__)
_GATHER: Final = re.compile(r"all_?gather", re.IGNORECASE)
_SCATTER: Final = re.compile(r"reduce_?scatter", re.IGNORECASE)
_LATE: Final = CAUSE.threshold("late")
_FEWEST_PER_STEP: Final = CAUSE.threshold("fewest_per_step")
_FORWARD_SHARE: Final = CAUSE.threshold("forward_share")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Gathers of parameters that begin after the compute before them, though nothing kept them from beginning."""
    graph = case.replayed
    duration = graph.duration.astype(np.float64)
    nodes: Mask = np.zeros(len(duration), np.bool_)
    took = transfer_ns(case)
    late_per_step = 0.0
    for rank in case.ranks:
        found = collectives(case, rank)
        late, behind_ns = _late_gathers(rank, found)
        per_step = np.count_nonzero(late) / max(len(rank.trace.steps), 1)
        if per_step < _FEWEST_PER_STEP:
            continue
        late_per_step = max(late_per_step, per_step)
        rows = np.flatnonzero(behind_ns > 0)
        at = found.node[rows]
        transfer = case.transfer_of[at]
        target = np.where(transfer >= 0, transfer, at)
        duration[target] = np.minimum(duration[target], np.maximum(took[at] - behind_ns[rows], 0))
        nodes[found.node[late]] = True
    if not nodes.any():
        return
    spent = spent_ns(case, nodes)
    yield Replayed(
        cause=CAUSE.id,
        attributed_ns=spent,
        evidence=(
            evidence.count(
                "gathers that begin after the compute before them", late_per_step, case.events_of(nodes), per=case.per
            ),
            evidence.time("spent in them by a rank", spent, per=case.per),
        ),
        removal=Change(duration=duration.astype(np.int64)),
        method="replay: each of these gathers behind the compute before it, and what is scattered before it "
        "behind the compute after it, as far as these are long enough",
        ranks=tuple(rank.rank for rank in case.ranks),
        uncertainty=0.25,
        confidence=0.85,
        rivals=("communication.exposed", "communication.low-bandwidth"),
    )


def _late_gathers(rank: RankCase, found: Collectives) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which gathers of parameters nothing hides, though compute ran before them in their step.

    And of each gather and scatter how much of it could be behind compute if they were not late.
    """
    late, behind = np.zeros(len(found.node), np.bool_), np.zeros(len(found.node), np.int64)
    if found.row is None:
        return late, behind
    events = rank.trace.device_events
    begins, lasts = events["ts_ns"].to_numpy(), events["duration_ns"].to_numpy()
    start, lasts = begins[found.row], lasts[found.row]
    end = start + lasts
    step = step_of(rank, found)
    timeline = intervals.class_timeline(
        begins, events["duration_ns"].to_numpy() + begins, rank.workings.classified.class_of
    )
    computes = timeline.cumulative(intervals.COMPUTE_RUNS)
    for rows, gathers in _of_parameters(found, start, step):
        at = np.flatnonzero(gathers)
        own = rows[at]
        # The compute of a layer lies between its gather and the group's next collective.
        following = np.append(rows[1:], rows[-1])[at]
        block = np.where(following == own, 0, computes.within(end[own], np.maximum(start[following], end[own])))
        same_step = np.append(False, step[own[1:]] == step[own[:-1]])
        before = np.where(same_step, np.append(0, block[:-1]), 0)
        bare = computes.within(start[own], end[own]) < _LATE * np.maximum(lasts[own], 1)
        late[own] = bare & (before > 0)
        # A scatter just before a late gather keeps it waiting; it could run beside the compute that follows.
        scatter = rows[np.maximum(at - 1, 0)]
        held = late[own] & ~gathers[np.maximum(at - 1, 0)] & (at > 0)
        beside = np.where(held, np.minimum(lasts[scatter], block), 0)
        behind[scatter[held]] = beside[held]
        free = np.append(0, (block - beside)[:-1])
        behind[own] = np.where(late[own], np.minimum(lasts[own], np.maximum(np.where(same_step, free, 0), 0)), 0)
    return late, behind


def _of_parameters(
    found: Collectives, start: NDArray[np.int64], step: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.bool_]]]:
    """The gathers and scatters of each group that shards parameters, by start, and which of them gather.

    Such a group gathers throughout a forward pass and scatters gradients in the backward pass alone. One that scatters
    from the start (sequence parallelism) gathers results, which must be computed first.
    """
    gathers, scatters = are(found, _GATHER) & (found.node >= 0), are(found, _SCATTER) & (found.node >= 0)
    group = np.array(found.group)
    for name in sorted(set(group[scatters].tolist())):
        rows = np.flatnonzero((group == name) & (gathers | scatters) & (step >= 0))
        rows = rows[np.lexsort((start[rows], step[rows]))]
        if not len(rows):
            continue
        steps = np.split(rows, np.flatnonzero(np.diff(step[rows])) + 1)
        first = [int(np.argmax(scatters[part])) if scatters[part].any() else len(part) for part in steps]
        ahead = [count / max(int(np.count_nonzero(gathers[part])), 1) for count, part in zip(first, steps, strict=True)]
        if float(np.median(ahead)) >= _FORWARD_SHARE:
            yield rows, gathers[rows]


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events")),))
