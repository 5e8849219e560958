"""The rank of a watched job on CPUs that works longest, and for which the others wait."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from whystall.analysis.run_results import RunSummary
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.collectives import EXCHANGE, are, collectives
from whystall.diagnosis.detectors.recorded_sizes import sizes_by_argument
from whystall.diagnosis.detectors.samples import measured_runs
from whystall.diagnosis.detectors.stages import sends_through
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import matching

_UNEVEN: Final = 0.1
_EVEN: Final = 0.05
_LEAST_EVEN: Final = 0.1
"""What all tokens pass through on their own rank is at least so much of what experts do."""
_MATRIX: Final = 2
Weight = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LateRank:
    """Its run and those of the others; shares are of the longest mean step of all."""

    run: RunSummary
    others: list[RunSummary]
    work_ns: float
    usual_ns: float
    late: float
    """How much longer it works than the others in the median."""
    idle: float
    """How long their training threads are on no core, in the median."""

    @property
    def shared(self) -> float:
        """What is gained where what it has more is shared out: the others then do their part of it."""
        return self.late * (1 - 1 / (1 + len(self.others)))


def late_rank(case: Case) -> LateRank | None:
    """The rank that works longest; ``None`` for a pipeline, whose stages have work of their own."""
    runs = measured_runs(case)
    if len(runs) < 2 or sends_through(case):
        return None
    work = {run.rank: run.on_cpu_share * run.mean_ns for run in runs}
    slowest = max(runs, key=lambda run: (work[run.rank], -run.rank))
    others = [run for run in runs if run is not slowest]
    usual = float(np.median([work[run.rank] for run in others]))
    late = (work[slowest.rank] - usual) / max(run.mean_ns for run in runs)
    idle = float(np.median([1 - run.on_cpu_share for run in others]))
    return LateRank(slowest, others, work[slowest.rank], usual, late, idle)


def uneven_tokens(case: Case, rank: int) -> float | None:
    """By how much a rank's experts multiply more rows than those of all ranks on average; ``None``: that is not it.

    Of ranks that exchange what they work on. What every token passes through on its own rank is as much on each.
    """
    if case.graph is None or not all(are(collectives(case, one), EXCHANGE).any() for one in case.ranks):
        return None
    by_weight: defaultdict[Weight, dict[int, float]] = defaultdict(dict)
    for one in case.ranks:
        for weight, rows in _rows_by_weight(one).items():
            by_weight[weight][one.rank] = rows * prod(weight) / max(len(one.trace.steps), 1)
    uneven = even = 0.0
    most = mean = 0.0
    for sums in by_weight.values():
        usual = sum(sums.values()) / len(case.ranks)
        if usual <= 0:  # experts that nobody chose
            continue
        apart = max(sums.values()) / usual - 1
        if apart <= _EVEN:
            even += usual
        elif apart > _UNEVEN:
            uneven += usual
            most += sums.get(rank, 0.0)
            mean += usual
    if not mean or even < _LEAST_EVEN * uneven or most / mean - 1 <= _UNEVEN:
        return None
    return most / mean - 1


def _rows_by_weight(rank: RankCase) -> dict[Weight, float]:
    """How many rows each size of weight was multiplied by in forward passes."""
    table = rank.trace.operators
    out: defaultdict[Weight, float] = defaultdict(float)
    for dims in table["input_dims"].filter(matching(table["name"], "aten::linear".__eq__)).cast(str).to_list():
        sizes = sizes_by_argument(dims)
        if len(sizes) >= _MATRIX and len(sizes[0]) == 1 and len(sizes[1]) == 1 and len(sizes[1][0]) == _MATRIX:
            out[sizes[1][0]] += prod(sizes[0][0][:-1])
    return out
