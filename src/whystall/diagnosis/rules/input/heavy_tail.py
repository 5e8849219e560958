"""Single samples that take very long to make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.input_waits import spiked, spiked_on_device
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_LEAST_SAVED: Final = CAUSE.threshold("least_saved")


def in_samples(case: Case) -> Iterator[Sampled]:
    """Single long fetches of a loader whose workers are kept."""
    yield from spiked(case, "input.heavy-tail", _LEAST_SAVED)


def in_slow_steps(case: Case) -> Iterator[Sampled]:
    """The same in slow steps of a job with an accelerator."""
    yield from spiked_on_device(case, "input.heavy-tail")


RULE = Rule(
    CAUSE,
    (Finder(in_samples, ("samples", "no_device")), Finder(in_slow_steps, ("samples", "device_events"))),
)
