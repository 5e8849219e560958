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
from whystall.diagnosis.detectors.collectives import POINT_TO_POINT, are, collectives
from whystall.diagnosis.detectors.samples import (
    code_of_lines,
    from_samples,
    lines_where,
    measured_runs,
    sends_or_gets,
    share_of,
)
from whystall.diagnosis.detectors.stages import micro_batches, pipelines, sends_through, stages, turns_of
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_MORE_MICRO_BATCHES: Final = int(CAUSE.threshold("more_micro_batches"))
_BEYOND_SCHEDULE: Final = CAUSE.threshold("beyond_schedule")
_AT_A_TIME: Final = CAUSE.threshold("at_a_time")
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
        method=f"the schedule's formula with {_MORE_MICRO_BATCHES} times the micro-batches",
        ranks=tuple(rank.rank for rank in case.ranks),
        tier=1,
        rivals=("pipeline.stage-imbalance", "communication.exposed"),
    )


def in_samples(case: Case) -> Iterator[Sampled]:
    """Stages on CPUs that work one at a time, since the first waits for the gradients of each micro-batch.

    With one micro-batch in flight for each stage, a step would be the busiest stage's work, and one micro-batch's pass
    through the others; if a step has only one micro-batch, it would be split into that number.
    """
    runs = {run.rank: run for run in measured_runs(case)}
    if len(runs) < 2 or not sends_through(case):
        return
    # gloo's messages have no recorded receiver: where none are known to meet, all ranks are one pipeline or none is.
    own = next(iter(pipelines(case)), [rank.rank for rank in case.ranks])
    micro = turns_of(case, own) if runs.keys() >= set(own) else 0
    if not micro or len({bool(len(rank.optimizer_steps[0])) for rank in case.ranks}) > 1:
        return  # a rank that only computes gradients for another one is no stage
    waits = {rank: min(share_of(_waiting(case, runs[rank])), 1 - runs[rank].on_cpu_share) for rank in own}
    busiest = min(own, key=lambda rank: (waits[rank], rank))
    works = 1 - waits[busiest]
    fill = (len(own) - 1) / micro
    filled = works * (1 + fill / (_MORE_MICRO_BATCHES if micro == 1 else 1))
    work = sum(1 - share for share in waits.values())
    # When no stage works a message is on its way: at best beside the work, if there are cores for both of its ends.
    sent = max(1 - work, 0.0)
    saved = 1 - max(filled, sent, (work + 2 * sent) / max(case.facts.cores or len(own), 1))
    beside = 1 - filled - sent
    if work > _AT_A_TIME or beside < _BEYOND_SCHEDULE:
        return
    yield from_samples(
        CAUSE.id,
        runs[busiest],
        saved,
        evidence=(
            evidence.count("stages", len(own)),
            evidence.count("micro-batches", micro, per=case.per),
            evidence.share("bubble by the schedule, (p - 1) / (m + p - 1)", fill / (1 + fill)),
            evidence.share("of the time the busiest stage waits for messages", waits[busiest]),
            evidence.share("of the time no stage works, as messages are on their way", sent),
        ),
        saved=(min(saved * 0.5, beside), saved, 1 - filled),
        ranks=tuple(sorted(own)),
        code=code_of_lines(_waiting(case, runs[busiest])),
        detail="each micro-batch has to come back before the next one is sent" if micro > 1 else "",
        remedy=CAUSE.remedies["in_flight"] if micro > 1 else None,
        method="samples: the busiest stage's work, and the schedule's formula",
        tier=1,
        rivals=("pipeline.stage-imbalance", "communication.exposed"),
    )


def _waiting(case: Case, run: RunSummary) -> list[SampledLine]:
    """The lines at which the training thread was found sending, receiving or, of messages alone, waiting for some."""
    rank = next(one for one in case.ranks if one.rank == run.rank)
    alone = bool(are(collectives(case, rank), POINT_TO_POINT).all())
    return lines_where(run, lambda line: sends_or_gets(line) or (alone and bool(_AWAITED.search(line.text))))


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "several_ranks")),
        Finder(in_samples, ("trace", "samples", "no_device")),
    ),
)
