"""Decoding that reads its weights about as fast as memory gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.limits import at_limit
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Sampled]:
    """Devices near the limit of their memory that do not train."""
    yield from at_limit(case, CAUSE.id, decoding=True)


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "operators", "shapes", "peak")),))
