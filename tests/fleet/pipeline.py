"""Writes operation logs of simulated jobs with known truth: an event loop over one-forward-one-backward schedules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

Cost = Callable[[int, int, str], float]  # data-parallel rank, stage, kind: seconds
TRANSFER_S = 0.001
KINDS = {"forward-compute": 0.1, "backward-compute": 0.2, "optimizer": 0.05}


def usual(rank: int, stage: int, kind: str) -> float:
    return KINDS[kind]


def write(
    path: Path, cost: Cost = usual, *, ranks: int = 2, stages: int = 3, microbatches: int = 4, steps: int = 2
) -> Path:
    rows = [row for step in range(steps) for row in _Step(step * 10, cost, ranks, stages, microbatches).rows]
    pl.DataFrame(rows).write_parquet(path)
    return path


def _schedule(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    ahead = min(stages - 1 - stage, microbatches)
    order = [("forward", number) for number in range(ahead)]
    for number in range(microbatches - ahead):
        order += [("forward", number + ahead), ("backward", number)]
    return order + [("backward", number) for number in range(microbatches - ahead, microbatches)]


class _Step:
    """The rows of one step, as it is simulated."""

    def __init__(self, step: int, cost: Cost, ranks: int, stages: int, microbatches: int) -> None:
        self.step, self.cost, self.stages, self.microbatches = step, cost, stages, microbatches
        self.rows: list[dict[str, Any]] = []
        done = [self.pipeline(rank) for rank in range(ranks)]
        for stage in range(stages):
            reduced = max(one[stage] for one in done) + 0.01
            for rank in range(ranks):
                self.row(rank, stage, "grads-reduce-scatter", done[rank][stage], reduced, mc=0)
                self.row(rank, stage, "optimizer", reduced, reduced + cost(rank, stage, "optimizer"))

    def row(self, rank: int, stage: int, kind: str, start: float, end: float, seq: int = 0, **own: int) -> None:
        place = {"dp_rank": rank, "stage": stage, "rank": rank * self.stages + stage, "step": self.step}
        times = {"optype": kind, "start_ts": start, "duration": end - start, "seq_id": seq}
        self.rows.append(place | times | {"mc": -1, "mb_id": -1, "gmc": -1} | own)

    def pipeline(self, rank: int) -> list[float]:
        """When each stage has computed everything."""
        arrived: dict[tuple[str, int, int], float] = {}
        free = [0.0] * self.stages
        left = [_schedule(stage, self.stages, self.microbatches) for stage in range(self.stages)]
        while any(left):
            for stage, schedule in enumerate(left):
                while schedule and self.compute(rank, stage, *schedule[0], free, arrived):
                    schedule.pop(0)
        return free

    def compute(
        self,
        rank: int,
        stage: int,
        kind: str,
        number: int,
        free: list[float],
        arrived: dict[tuple[str, int, int], float],
    ) -> bool:
        """Whether what it needs has arrived; then it is computed and sent on."""
        start = free[stage]
        if stage != (0 if kind == "forward" else self.stages - 1):
            if (kind, stage, number) not in arrived:
                return False
            start = max(start, arrived[kind, stage, number])
            self.row(rank, stage, f"{kind}-recv", free[stage], start, number)
        free[stage] = end = start + self.cost(rank, stage, f"{kind}-compute")
        self.row(rank, stage, f"{kind}-compute", start, end, number, mc=0, mb_id=number, gmc=stage)
        there = stage + (1 if kind == "forward" else -1)
        if 0 <= there < self.stages:
            arrived[kind, there, number] = end + TRANSFER_S
            self.row(rank, stage, f"{kind}-send", end, end + TRANSFER_S, number)
        return True
