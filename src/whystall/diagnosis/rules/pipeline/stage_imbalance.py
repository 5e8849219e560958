"""Stages that wait for one that has more to compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.samples import code_of_lines, from_samples, measured_runs
from whystall.diagnosis.detectors.stages import sends_through, stages
from whystall.diagnosis.finding import Evidence
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change

CAUSE: Final = cause_beside(__name__)
_APART: Final = CAUSE.threshold("apart")
_APART_BY_LAYERS: Final = CAUSE.threshold("apart_by_layers")
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
            Evidence(what="its compute, times the mean of the stages", value=round(apart, 4), unit="x"),
        ),
        removal=Change(duration=duration.astype(np.int64)),
        method="replay: the same compute in every stage",
        ranks=ranks,
        uncertainty=0.15,
        rivals=("pipeline.bubble", "communication.straggler"),
    )


def in_samples(case: Case) -> Iterator[Sampled]:
    """The rank of a pipeline on CPUs whose training thread works longest, beyond the mean of all."""
    runs = measured_runs(case)
    if len(runs) < 2 or not sends_through(case):
        return
    work = {run.rank: run.on_cpu_share * run.mean_ns for run in runs}
    slowest = max(runs, key=lambda run: (work[run.rank], -run.rank))
    mean = sum(work.values()) / len(work)
    apart = work[slowest.rank] / max(mean, 1.0)
    idle = max(1 - run.on_cpu_share for run in runs)
    shared = (work[slowest.rank] - mean) / max(run.mean_ns for run in runs)
    if apart <= _APART_BY_LAYERS or idle < shared:
        return
    yield from_samples(
        CAUSE.id,
        slowest,
        shared,
        evidence=(
            evidence.text("the slowest stage", f"rank {slowest.rank}"),
            Evidence(what="its work, times the mean of the stages", value=round(apart, 4), unit="x"),
            evidence.time("its training thread works", round(work[slowest.rank]), per="step"),
        ),
        # A step is the slowest stage's time, plus one micro-batch's pass through the others, which gain nothing.
        saved=(shared * 0.4, shared * 0.85, min(shared * 1.1, idle)),
        code=code_of_lines([line for line in slowest.places if line.part in ("forward", "backward")]),
        method="samples: the same work in every stage",
        rivals=("pipeline.bubble", "communication.straggler", "host.cpu-contention"),
    )


def _named(stage: int, ranks: tuple[tuple[int, ...], ...]) -> str:
    own = ranks[stage]
    told = ", ".join(map(str, own[:_MOST_NAMED])) + (", …" if len(own) > _MOST_NAMED else "")
    return f"stage {stage + 1} of {len(ranks)}, rank{'s' * (len(own) > 1)} {told}"


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "several_ranks")),
        Finder(in_samples, ("trace", "samples", "no_device")),
    ),
)
