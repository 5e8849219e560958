"""Lines that print, log, write or flush."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from whystall.analysis.run_results import SampledLine
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.episodes import named_episodes
from whystall.diagnosis.detectors.samples import (
    LEAST_SEEN,
    callbacks_that_write,
    code_of_lines,
    from_stack_samples,
    is_logging,
    measured_runs,
    time_in,
)
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Annotations and frames that are named after it."""
    yield from named_episodes(case, CAUSE.id, "logging")


def in_samples(case: Case) -> Iterator[Sampled]:
    """Lines that print, log, write or flush, and functions that are named after it."""
    for run in measured_runs(case):
        callbacks = callbacks_that_write(run)
        lines = [line for line in run.places if _logs(line) or line in callbacks]
        share = time_in(run, lines)
        if share >= LEAST_SEEN:
            rivals = ("host.python", "episodic.checkpoint", "compute.unfused-optimizer")
            found = from_stack_samples(CAUSE.id, run, lines, share, "logging", rivals)
            yield replace(found, code=code_of_lines(lines)) if callbacks else found


def _logs(line: SampledLine) -> bool:
    return line.part == "logging" or (line.part in ("other", "forward", "optimizer") and is_logging(line))


RULE = Rule(CAUSE, (Finder(in_trace, ("trace",)), Finder(in_samples, ("samples", "no_device"))))
