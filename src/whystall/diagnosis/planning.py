"""The plan: which causes to remove one after the other, and how far that leads."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.diagnosis.candidate import Sampled, Weighed
from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import Plan
from whystall.diagnosis.gains import saved_by, speedup, together
from whystall.diagnosis.weighing import LEAST_SHARE
from whystall.replay.graph import Change


def plan(case: Case, firing: Sequence[Weighed]) -> Plan | None:
    """All firing causes removed one after the other; gains of sets are replayed, not added.

    The first finding comes first, then the best next each time: a general cause that holds a specific one has the
    larger gain by itself, and its remedy is not the first to try.

    If samples value a cause below its replay, it counts by that ratio. If they found more than the recorded steps show,
    the plan gains no less than that.
    """
    left = [one for one in firing if one.candidate.removal is not None]
    if len(left) < 2:
        return None
    whole = max(case.window_ns, 1)
    order: list[str] = []
    gains: list[float] = []
    change: Change | None = None
    replayed = reached = alone = 0.0
    weight = {id(one): _sampled_weight(case, one) for one in left}
    while left:
        next_ones = left if order else left[:1]
        tried = [(saved_by(case, together(case, change, one.candidate.removal), whole), one) for one in next_ones]
        saved, best = max(tried, key=lambda pair: ((pair[0] - replayed) * weight[id(pair[1])], pair[1].candidate.cause))
        left.remove(best)
        added = max(saved - replayed, 0.0) * weight[id(best)]
        if order and added < LEAST_SHARE * (1 - reached):
            continue
        change, replayed = together(case, change, best.candidate.removal), saved
        reached += added
        order.append(best.candidate.cause)
        alone = max(alone, best.expected)
        gains.append(speedup(max(reached, alone)))
    return Plan(causes=order, speedups=gains) if len(order) > 1 else None


def _sampled_weight(case: Case, one: Weighed) -> float:
    """The value of a cause in samples of the whole run, relative to its replay of the recorded steps.

    At most 1.
    """
    if not isinstance(one.candidate, Sampled):
        return 1.0
    alone = saved_by(case, one.candidate.removal, max(case.window_ns, 1))
    return min(one.expected / alone, 1.0) if alone > 0 else 0.0
