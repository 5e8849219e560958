"""Stages that wait for one that has more to compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.stages import stages
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change

CAUSE: Final = cause_beside(__name__)
_APART: Final = CAUSE.threshold("apart")


def in_trace(case: Case) -> Iterator[Replayed]:
    """The slowest stage, if its compute is beyond the mean of all."""
    found = stages(case)
    if found is None:
        return
    per_step, mean = found.per_step_ns, found.mean_ns
    slowest = max(per_step, key=lambda rank: (per_step[rank], -rank))
    apart = per_step[slowest] / max(mean, 1.0)
    if apart <= _APART:
        return
    duration = case.replayed.duration.astype(np.float64)
    for rank, nodes in found.nodes.items():
        duration[nodes] *= mean / max(per_step[rank], 1)
    yield Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step[slowest] - int(mean),
        evidence=(
            evidence.text("the slowest stage", f"rank {slowest}"),
            evidence.share("its compute above the mean of the stages", apart - 1),
        ),
        removal=Change(duration=duration.astype(np.int64)),
        method="replay: the same compute in every stage",
        ranks=(slowest,),
        uncertainty=0.15,
        rivals=("pipeline.bubble", "communication.straggler"),
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "several_ranks")),))
