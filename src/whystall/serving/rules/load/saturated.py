"""More load than the server can do."""

from __future__ import annotations

from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part
from whystall.serving.request_ledger import RequestLedger

CAUSE: Final = cause_beside(__name__)
_FEWEST: Final = 30
_WAITS: Final = (Part.STEP_WAIT, Part.QUEUE, Part.OTHERS_PREFILL, Part.PREEMPTED, Part.FRONT_AND_STEP_WAIT)
_HALF: Final = 0.5


def find(case: Case) -> Finding | None:
    """An engine that never rests while waits grow, although no limit holds requests back."""
    steps = case.analysis.steps
    load = None if steps is None else steps.load
    if load is None or load < CAUSE.threshold("least_load") or len(case.ledgers) < _FEWEST:
        return None
    queue = case.queue
    waited = case.mean(*_WAITS)
    is_limited = case.mean(Part.QUEUE) > _HALF * waited and queue.share(queue.budget_ns) < _HALF
    third = len(case.ledgers) // 3
    ordered = sorted(case.ledgers, key=lambda one: one.index)
    early, late = _per_token(ordered[:third]), _per_token(ordered[-third:])
    if is_limited or not early or late / early < CAUSE.threshold("least_growth"):
        return None
    return case.finding(
        CAUSE,
        f"The load is at fault, not a setting: the engine works {load:.0%} of the time, and requests of the last "
        f"third take {late / early:.1f} times as long per token as those of the first; they wait {duration(waited)} "
        "for others.",
        waited,
        Evidence("load of the engine", load, "share"),
        Evidence("time per token, last third over first", late / early, "ratio"),
    )


def _per_token(ledgers: list[RequestLedger]) -> float:
    tokens = sum(one.output_tokens for one in ledgers)
    return sum(one.server_ns for one in ledgers) / tokens if tokens else 0.0


RULE: Final = Rule(CAUSE, find)
