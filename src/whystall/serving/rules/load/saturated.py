"""More load than the server can do."""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part

CAUSE: Final = cause_beside(__name__)
_FEWEST: Final = 30
_WAITS: Final = (Part.STEP_WAIT, Part.QUEUE, Part.OTHERS_PREFILL, Part.PREEMPTED, Part.FRONT_AND_STEP_WAIT)
_HALF: Final = 0.5


def find(case: Case) -> Finding | None:
    """An engine that never rests while waits grow, although no limit holds requests back."""
    steps = case.analysis.steps
    load = None if steps is None else steps.load
    if (
        load is None
        or load < CAUSE.threshold("least_load")
        or len(case.ledgers) < _FEWEST
        or case.analysis.timeline is None
    ):
        return None
    queue = case.queue
    waited = case.mean(*_WAITS)
    is_limited = case.mean(Part.QUEUE) > _HALF * waited and queue.share(queue.budget_ns) < _HALF
    first, middle, last = _under_way(case)
    growth = CAUSE.threshold("least_growth")
    if is_limited or middle < growth * first or last < growth * middle:
        return None
    return case.finding(
        CAUSE,
        f"The load is at fault, not a setting: the engine works {load:.0%} of the time, a request of the last third "
        f"finds {last:.1f} others under way (of the first third {first:.1f}), and waits {duration(waited)} for others.",
        waited,
        Evidence("load of the engine", load, "share"),
        Evidence("requests under way at an arrival, first third", first, "count"),
        Evidence("requests under way at an arrival, last third", last, "count"),
    )


def _under_way(case: Case) -> tuple[float, float, float]:
    """The mean number of requests that a new one finds under way, in each third of the arrivals."""
    requests = case.run.client.requests if case.run.client is not None else ()
    known = [(one.sent_ns - (one.gate_ns or 0), one.sent_ns + one.latency_ns) for one in requests if one.sent_ns]
    sent, ended = np.sort([start for start, _ in known]), np.sort([end for _, end in known])
    found = np.arange(len(sent)) - np.searchsorted(ended, sent, side="right")
    first, middle, last = (float(third.mean()) for third in np.array_split(found, 3))
    return first, middle, last


RULE: Final = Rule(CAUSE, find)
