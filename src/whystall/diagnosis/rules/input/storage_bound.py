"""Workers that wait for reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.input_waits import starved
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def in_samples(case: Case) -> Iterator[Sampled]:
    """Waits for workers that hardly use a core, although each has one."""
    yield from starved(case, "input.storage-bound")


RULE = Rule(CAUSE, (Finder(in_samples, ("samples", "no_device")),))
