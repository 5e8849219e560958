"""Checkpoints that are written while training waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.episodes import episode, named_episodes, silent_episodes
from whystall.diagnosis.detectors.samples import (
    code_of_lines,
    from_samples,
    is_saving,
    lines_where,
    measured_runs,
    share_of,
)
from whystall.diagnosis.detectors.slow_steps import of_slow_steps, slow_steps
from whystall.diagnosis.detectors.stretches import recurrence
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_DISK_LOW: Final = CAUSE.threshold("disk_low")
_DISK_HIGH: Final = CAUSE.threshold("disk_high")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Annotations and frames that are named after saving."""
    yield from named_episodes(case, CAUSE.id, "checkpoint")


def without_stacks(case: Case) -> Iterator[Replayed]:
    """Long pauses after many copies from the device, where no stack names them."""
    for silent in silent_episodes(case):
        if silent.saves.any():
            begin, end = silent.begin[silent.saves], silent.end[silent.saves]
            # The time before the copies may lie in the step before, which need not be in the replayed window.
            often = recurrence(case, silent.rank, begin)
            yield episode(case, silent.rank, CAUSE.id, silent.from_first_copy(), end, recurrence=often, confidence=0.7)


def in_samples(case: Case) -> Iterator[Sampled]:
    """The time in torch.save, in functions that are named after it, and at lines that write objects or arrays."""
    for run in measured_runs(case):
        measured = lines_where(run, lambda line: line.part in ("checkpoint", "save"))
        found = lines_where(run, is_saving)
        share = max(run.shares.get("save", 0.0), share_of(measured)) + share_of(found)
        lines = sorted([*measured, *found], key=lambda line: -line.share)
        if share > 0:
            yield from_samples(
                CAUSE.id,
                run,
                share,
                part="save",
                evidence=(
                    evidence.time("saving, on average", round(share * run.mean_ns), per="step"),
                    evidence.share("of the steps' time", share),
                ),
                code=code_of_lines(lines),
                saved=(share * _DISK_LOW, share, min(share * _DISK_HIGH, 0.99)),
                rivals=("host.python", "episodic.logging"),
            )


def in_slow_steps(case: Case) -> Iterator[Sampled]:
    """Slow steps of a job with an accelerator that save, or were found at lines that do."""
    for slow in slow_steps(case):
        lines = lines_where(slow.run, lambda line: line.part in ("checkpoint", "save") or is_saving(line))
        share = slow.lost_for("save") or slow.lost_at(lines)
        if share > 0:
            yield of_slow_steps(CAUSE.id, slow, share, "save", lines, ("host.python", "episodic.logging"))


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace",)),
        Finder(without_stacks, ("trace", "device_events")),
        Finder(in_samples, ("samples", "no_device")),
        Finder(in_slow_steps, ("samples", "device_events")),
    ),
)
