"""Operators of which a recording shows that another form of them takes a part of their time."""

from __future__ import annotations

from dataclasses import dataclass

from whystall.diagnosis.finding import Evidence
from whystall.replay.graph import Mask


@dataclass(frozen=True, slots=True)
class Wasted:
    """The operators with all they call, and what is said of them.

    ``left`` of their time remains: at least, as expected, at most. ``remedy`` is the name of one of the cause's.
    """

    operators: Mask
    left: tuple[float, float, float]
    what: str
    facts: tuple[Evidence, ...]
    method: str
    detail: str
    remedy: str
