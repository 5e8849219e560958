"""Stages that wait because too few micro-batches are on their way to fill the pipeline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from whystall.analysis.run_results import RunSummary, SampledLine
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.samples import code_of_lines, from_samples, lines_where, measured_runs, share_of
from whystall.diagnosis.detectors.stages import micro_batches, pipelines, sends_through, stages
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_MORE_MICRO_BATCHES: Final = int(CAUSE.threshold("more_micro_batches"))
_BEYOND_SCHEDULE: Final = CAUSE.threshold("beyond_schedule")
_MESSAGES: Final = re.compile(r"distributed_c10d:(i?recv|i?send|batch_isend_irecv)$")
_AWAITED: Final = re.compile(r"\.wait\(")


def in_trace(case: Case) -> Iterator[Sampled]:
    """The bubble of the schedule that the messages between stages show."""
    found = stages(case)
    micro = micro_batches(case) if found is not None else 0
    if found is None or not micro:
        return
    count = len(found.ranks)
    fill = (count - 1) / micro
    idle = case.step_ns - int(found.mean_ns)
    better = 1 - (1 + fill / _MORE_MICRO_BATCHES) / (1 + fill)
    yield Sampled(
        cause=CAUSE.id,
        attributed_ns=idle,
        evidence=(
            evidence.count("stages", count),
            evidence.count("micro-batches", micro, per=case.per),
            evidence.share("bubble by the schedule, (p - 1) / (m + p - 1)", fill / (1 + fill)),
            evidence.share("idle compute per stage, as measured", idle / max(case.step_ns, 1)),
        ),
        saved=(better * 0.5, better, fill / (1 + fill)),
        method=f"the schedule's formula with {_MORE_MICRO_BATCHES} times as many micro-batches",
        ranks=tuple(rank.rank for rank in case.ranks),
        tier=1,
        rivals=("pipeline.stage-imbalance", "communication.exposed"),
    )


def in_samples(case: Case) -> Iterator[Sampled]:
    """Stages on CPUs, whose threads wait for messages for longer than the schedule's formula says.

    With all the micro-batches that the schedule has on their way, a step would be the busiest stage's work, and the
    passing of one micro-batch through the others.
    """
    runs = measured_runs(case)
    micro = micro_batches(case) if len(runs) > 1 and sends_through(case) else 0
    if not micro:
        return
    count = max((len(own) for own in pipelines(case)), default=len(runs))
    fill = (count - 1) / micro
    waits = {run.rank: min(share_of(_waiting(run)), 1 - run.on_cpu_share) for run in runs}
    busiest = min(runs, key=lambda run: (waits[run.rank], run.rank))
    works = 1 - waits[busiest.rank]
    saved, held = 1 - works * (1 + fill), True
    if saved < _BEYOND_SCHEDULE and micro < count:
        saved, held = 1 - works * (1 + fill / _MORE_MICRO_BATCHES), False
    if saved < _BEYOND_SCHEDULE:
        return
    yield from_samples(
        CAUSE.id,
        busiest,
        saved,
        evidence=(
            evidence.count("stages", count),
            evidence.count("micro-batches", micro, per=case.per),
            evidence.share("bubble by the schedule, (p - 1) / (m + p - 1)", fill / (1 + fill)),
            evidence.share("of the time the busiest stage waits for messages", waits[busiest.rank]),
        ),
        # What messages take on their way stays, and is not known.
        saved=(saved * 0.5, saved, min(saved * 1.1, 1 - works)),
        ranks=tuple(sorted(waits)),
        code=code_of_lines(_waiting(busiest)),
        detail="each stage waits for a micro-batch to come back before it goes on with the next" if held else "",
        remedy=CAUSE.remedies["in_flight"] if held else None,
        method="samples: the busiest stage's work, and the schedule's formula",
        tier=1,
        rivals=("pipeline.stage-imbalance", "communication.exposed"),
    )


def _waiting(run: RunSummary) -> list[SampledLine]:
    """The lines at which the training thread was found sending, receiving or waiting for that."""
    return lines_where(run, lambda line: bool(_MESSAGES.search(line.leaf) or _AWAITED.search(line.text)))


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "several_ranks")),
        Finder(in_samples, ("trace", "samples", "no_device")),
    ),
)
