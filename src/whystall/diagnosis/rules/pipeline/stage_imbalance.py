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
_MOST_NAMED: Final = 8


def in_trace(case: Case) -> Iterator[Replayed]:
    """The slowest stage, if its compute is beyond the mean of all."""
    found = stages(case)
    if found is None:
        return
    stage_ns, mean = found.stage_ns, found.mean_ns
    slowest = max(range(len(stage_ns)), key=lambda stage: (stage_ns[stage], -stage))
    apart = stage_ns[slowest] / max(mean, 1.0)
    if apart <= _APART:
        return
    duration = case.replayed.duration.astype(np.float64)
    for own, lasts in zip(found.ranks, stage_ns, strict=True):
        for rank in own:
            duration[found.nodes[rank]] *= mean / max(lasts, 1)
    ranks = found.ranks[slowest]
    yield Replayed(
        cause=CAUSE.id,
        attributed_ns=stage_ns[slowest] - int(mean),
        evidence=(
            evidence.text("the slowest stage", _named(slowest, found.ranks)),
            evidence.share("its compute above the mean of the stages", apart - 1),
        ),
        removal=Change(duration=duration.astype(np.int64)),
        method="replay: the same compute in every stage",
        ranks=ranks,
        uncertainty=0.15,
        rivals=("pipeline.bubble", "communication.straggler"),
    )


def _named(stage: int, ranks: tuple[tuple[int, ...], ...]) -> str:
    own = ranks[stage]
    told = ", ".join(map(str, own[:_MOST_NAMED])) + (", …" if len(own) > _MOST_NAMED else "")
    return f"stage {stage + 1} of {len(ranks)}, rank{'s' * (len(own) > 1)} {told}"


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "several_ranks")),))
