"""Rendering and tokenizing in front of the scheduler."""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.diagnosis.units import duration
from whystall.serving.case import Case
from whystall.serving.cause import Evidence, Finding, Rule, cause_beside
from whystall.serving.parts import Part

CAUSE: Final = cause_beside(__name__)
_FEWEST: Final = 10


def find(case: Case) -> Finding | None:
    """Front times that grow with the prompt."""
    front = case.mean(Part.FRONT)
    if case.share(front) < CAUSE.threshold("least_share") or len(case.ledgers) < _FEWEST:
        return None
    times = np.array([one.of(Part.FRONT) for one in case.ledgers], dtype=np.float64)
    tokens = np.array([one.input_tokens for one in case.ledgers], dtype=np.float64)
    if not times.std() or not tokens.std():
        return None
    together = float(np.corrcoef(times, tokens)[0, 1])
    if together < CAUSE.threshold("least_correlation"):
        return None
    return case.finding(
        CAUSE,
        f"The host is at fault: rendering and tokenizing a prompt takes {duration(front)}, and grows with its length.",
        front,
        Evidence("front, mean", front, "ns"),
        Evidence("correlation with prompt tokens", together, "ratio"),
    )


RULE: Final = Rule(CAUSE, find)
