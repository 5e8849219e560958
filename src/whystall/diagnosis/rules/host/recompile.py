"""A compiler that is at work in steps after the first."""

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
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Replayed]:
    """What torch marks while it compiles: its own annotations, and the function in its Python stacks."""
    yield from named_episodes(case, CAUSE.id, "compilation")


def in_samples(case: Case) -> Iterator[Sampled]:
    """Stack samples in the function that turns a frame into compiled code."""
    for run in measured_runs(case):
        lines = lines_where(run, lambda line: line.part == "compile")
        share = share_of(lines)
        if share >= LEAST_SEEN:
            yield from_stack_samples(CAUSE.id, run, lines, share, "the compiler of models", ("host.python",))


RULE = Rule(CAUSE, (Finder(in_trace, ("trace",)), Finder(in_samples, ("samples", "no_device"))))
