"""Evaluation that interrupts training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.episodes import named_episodes
from whystall.diagnosis.detectors.samples import (
    LEAST_SEEN,
    from_stack_samples,
    lines_where,
    measured_runs,
    share_of,
)
from whystall.diagnosis.detectors.slow_steps import lost_at_lines
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Annotations and frames that are named after it."""
    yield from named_episodes(case, CAUSE.id, "evaluation")


def in_samples(case: Case) -> Iterator[Sampled]:
    """Functions that are named after evaluation."""
    for run in measured_runs(case):
        lines = lines_where(run, lambda line: line.part == "evaluation")
        share = share_of(lines)
        if share >= LEAST_SEEN:
            yield from_stack_samples(CAUSE.id, run, lines, share, "evaluation", ("host.python",))


def in_slow_steps(case: Case) -> Iterator[Sampled]:
    """The same in slow steps of a job with an accelerator."""
    yield from lost_at_lines(case, CAUSE.id, ("host.python",), lambda line: line.part == "evaluation")


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace",)),
        Finder(in_samples, ("samples", "no_device")),
        Finder(in_slow_steps, ("samples", "device_events")),
    ),
)
