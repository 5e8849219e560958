"""Stages of a pipeline: what each computes in a step, and how many micro-batches they pass on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from whystall.analysis.kernel_classes import COMPUTE
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.collectives import collectives, has_stages, lacks_a_stage, step_of
from whystall.replay.graph import Mask


@dataclass(frozen=True, slots=True)
class Stages:
    """Per rank the nodes of its compute, and their time per step; the mean of these times."""

    nodes: dict[int, Mask]
    per_step_ns: dict[int, int]

    @property
    def mean_ns(self) -> float:
        """The mean compute of a stage in a step."""
        return float(np.mean(list(self.per_step_ns.values())))


def stages(case: Case) -> Stages | None:
    """The stages of a job, one per rank; ``None`` where there are none, or where one was not recorded."""
    if not has_stages(case) or lacks_a_stage(case):
        return None
    computes = {rank.rank: case.nodes(rank, device=rank.workings.classified.class_of == COMPUTE) for rank in case.ranks}
    return Stages(computes, {rank: case.time_of(nodes) for rank, nodes in computes.items()})


def micro_batches(case: Case) -> int:
    """How many messages one stage sends the next in a step."""
    counts = []
    for rank in case.ranks:
        found = collectives(case, rank)
        sends = np.array([kind == "send" for kind in found.kind], np.bool_)
        if sends.any():
            step = step_of(rank, found)[sends]
            groups = [group for group, sent in zip(found.group, sends.tolist(), strict=True) if sent]
            table = pl.DataFrame({"step": step, "group": groups}).filter(pl.col("step") >= 0)
            counts += table.group_by("step", "group").len()["len"].to_list()
    return int(np.median(counts)) if counts else 0
