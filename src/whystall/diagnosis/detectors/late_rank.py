"""The rank of a watched job on CPUs that works longest, and for which the others wait."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import polars as pl

from whystall.analysis.run_results import RunSummary
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.collectives import EXCHANGE, are, collectives
from whystall.diagnosis.detectors.samples import lines_where, measured_runs, sends_or_gets
from whystall.diagnosis.detectors.stages import sends_through
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import matching
from whystall.trace.recorded_sizes import sizes_by_argument

_UNEVEN: Final = 0.1
"""The ranks' layers of a size multiply uneven numbers of rows from this share above their mean on."""
_EVEN: Final = 0.05
"""Ranks whose numbers of multiplied rows differ by at most this share are even."""
_HOT: Final = 0.05
"""Ranks that work longer than the mean of all by this share have an excess load."""
_ENGINE: Final = "autograd::engine"
_LEAST_EVEN: Final = 0.1
"""Minimum ratio of the products that all tokens pass through on their own rank to those of experts."""
_MATRIX: Final = 2
_WITH_GRADIENTS: Final = 3
"""Time of a product and those of its two gradients relative to the product alone."""
_LEAST_EXPLAINED: Final = 0.5
"""Minimum share of a rank's excess work that its experts' products explain, if they are why it is late."""
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
    above_mean: float
    """Its excess over the mean work of all ranks: the gain of an even distribution."""
    hot: tuple[int, ...]
    """The ranks that work longer than the mean."""

    @property
    def shared(self) -> float:
        """The gain of sharing out its excess: the other ranks then do their part of it."""
        return self.late * (1 - 1 / (1 + len(self.others)))


def late_rank(case: Case) -> LateRank | None:
    """The rank that works longest; ``None`` for a pipeline, whose stages have work of their own.

    Where no recording is whole, ranks that are found sending to each other may be one.
    """
    runs = measured_runs(case)
    if len(runs) < 2 or sends_through(case):
        return None
    if case.graph is None and any(lines_where(run, sends_or_gets) for run in runs):
        return None
    work = {run.rank: run.on_cpu_share * run.mean_ns for run in runs}
    slowest = max(runs, key=lambda run: (work[run.rank], -run.rank))
    others = [run for run in runs if run is not slowest]
    usual = float(np.median([work[run.rank] for run in others]))
    late = (work[slowest.rank] - usual) / max(run.mean_ns for run in runs)
    idle = float(np.median([1 - run.on_cpu_share for run in others]))
    mean = float(np.mean(list(work.values())))
    above = (work[slowest.rank] - mean) / max(run.mean_ns for run in runs)
    hot = tuple(sorted(rank for rank, own in work.items() if own > mean * (1 + _HOT)))
    return LateRank(slowest, others, work[slowest.rank], usual, late, idle, above, hot)


@dataclass(frozen=True, slots=True)
class UnevenTokens:
    """The excess work of the experts on the busiest rank over the mean of all ranks."""

    rows: float
    """The share of rows that they multiply more."""
    takes: float
    """The time of these rows, as a share of the longest mean step of all; at most that rank's excess over the mean."""


def uneven_tokens(case: Case, late: LateRank) -> UnevenTokens | None:
    """The excess rows of experts on the late rank; ``None`` where they are not why it is late, or not most of it.

    Applies to ranks that exchange their tokens within a forward pass, and send them back. Layers that every token
    passes through on its own rank do the same work on each.
    """
    if case.graph is None or not all(are(collectives(case, one), EXCHANGE).any() for one in case.ranks):
        return None
    # Products between exchanges may be experts; every token passes through all others.
    for_each: defaultdict[tuple[Weight, bool], dict[int, _Products]] = defaultdict(dict)
    for one in case.ranks:
        for key, products in _by_weight(case, one).items():
            for_each[key][one.rank] = products
    uneven = even = most = takes_ns = 0.0
    for (_, exchanged), own in for_each.items():
        usual = sum(one.numbers for one in own.values()) / len(case.ranks)
        if usual <= 0:  # experts without tokens
            continue
        apart = max(one.numbers for one in own.values()) / usual - 1
        if apart <= _EVEN:
            even += usual
        elif apart > _UNEVEN and exchanged:
            hot = own.get(late.run.rank, _Products())
            uneven += usual
            most += hot.numbers
            takes_ns += hot.takes_ns - sum(one.takes_ns for one in own.values()) / len(case.ranks)
    if not uneven or even < _LEAST_EVEN * uneven:
        return None
    takes = min(takes_ns / max(run.mean_ns for run in (late.run, *late.others)), late.above_mean)
    return UnevenTokens(most / uneven - 1, takes) if takes >= _LEAST_EXPLAINED * late.above_mean else None


@dataclass(slots=True)
class _Products:
    """Products with weights of a size: the numbers they multiply in a step, and their time with their gradients."""

    numbers: float = 0.0
    takes_ns: float = 0.0


def _by_weight(case: Case, rank: RankCase) -> dict[tuple[Weight, bool], _Products]:
    """The products with each size of weight, between two exchanges of a forward pass or elsewhere."""
    table, found = rank.trace.operators, collectives(case, rank)
    at = table["ts_ns"].to_numpy()
    exchanges = np.sort(found.start[are(found, EXCHANGE)])
    back = np.sort(at[matching(table["name"], lambda name: name.startswith(_ENGINE))])
    # Per gap between two exchanges whether it has no backward work: that repeats the same exchanges.
    forward = np.concatenate([[False], np.diff(np.searchsorted(back, exchanges)) == 0, [False]])
    chosen = matching(table["name"], "aten::linear".__eq__)
    exchanged = forward[np.searchsorted(exchanges, at[chosen], side="right")]
    products = table.filter(chosen).select(pl.col("input_dims").cast(str), "duration_ns")
    passes = (_WITH_GRADIENTS if len(back) else 1) / max(len(rank.trace.steps), 1)
    out: defaultdict[tuple[Weight, bool], _Products] = defaultdict(_Products)
    for (dims, takes_ns), inside in zip(products.iter_rows(), exchanged.tolist(), strict=True):
        sizes = sizes_by_argument(dims)
        if len(sizes) >= _MATRIX and len(sizes[0]) == 1 and len(sizes[1]) == 1 and len(sizes[1][0]) == _MATRIX:
            one = out[sizes[1][0], inside]
            one.numbers += prod(sizes[0][0][:-1]) * prod(sizes[1][0]) / max(len(rank.trace.steps), 1)
            one.takes_ns += takes_ns * passes
    return out
