"""Stages that wait because there are too few micro-batches to fill the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.stages import micro_batches, stages
from whystall.diagnosis.rule import Finder, Rule

CAUSE: Final = cause_beside(__name__)
_MORE_MICRO_BATCHES: Final = int(CAUSE.threshold("more_micro_batches"))


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


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "several_ranks")),))
