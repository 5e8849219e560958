"""Requests that are sent later than intended."""

from __future__ import annotations

from statistics import median
from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part

CAUSE: Final = cause_beside(__name__)


def find(case: Case) -> Finding | None:
    """Lateness of the median request: single stalls of the client's machine do not move it."""
    if not case.ledgers:
        return None
    usual = median(one.of(Part.LATE_SEND) for one in case.ledgers)
    whole = median(one.total_ns for one in case.ledgers)
    if not whole or usual / whole < CAUSE.threshold("least_share"):
        return None
    late = case.mean(Part.LATE_SEND)
    worst = max(one.of(Part.LATE_SEND) for one in case.ledgers)
    return case.finding(
        CAUSE,
        f"The load generator is at fault, not the server: half of the requests leave {duration(int(usual))} or more "
        f"after they are due, the latest {duration(worst)}.",
        late,
        Evidence("sent later than intended, median", usual, "ns"),
        Evidence("sent later than intended, at most", worst, "ns"),
    )


RULE: Final = Rule(CAUSE, find)
