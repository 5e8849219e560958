"""Workers that compute all the time, with no core to spare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.input_waits import input_waits, starved_for
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def in_samples(case: Case) -> Iterator[Sampled]:
    """Waits for workers that take the cores; the training thread lacks those as well."""
    for waits in input_waits(case):
        if waits.starved == CAUSE.id and waits.starving is not None:
            shares = waits.run.shares
            lacking = max(1 - waits.run.on_cpu_share - shares.get("input", 0.0) - shares.get("save", 0.0), 0.0)
            waited = evidence.share("of the steps' time the training thread waited for a core", lacking)
            yield starved_for(waits, waits.starving + lacking, waited)


RULE = Rule(CAUSE, (Finder(in_samples, ("samples", "no_device")),))
