"""Functions that torch's compiler looks up among its compiled versions, finds none that fits, and runs as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask, Times
from whystall.trace.columns import matching
from whystall.vocabulary.compiled_code import REGION

# torch 2.1 and later: the evaluation of guards, and a compiled function ("frame/version").
_LOOKUP: Final = "TorchDynamo Cache Lookup"
_REGION: Final = re.compile(rf"^{REGION}: (\d+)/(\d+)")
# Remaining share of the time in a compiled version, if none was recorded: at least, usually, at most. Chains of
# elementwise operators become a few passes, products stay.
_LEFT: Final = (0.2, 0.45, 0.8)
# A version for all sizes is slower than those for one, and a profiler slows many operators more than one call of
# compiled code.
_SLOWER: Final = 1.3
_MOST_OFF: Final = 1.8


@dataclass(frozen=True, slots=True)
class Uncompiled:
    """Stretches of uncompiled functions, and the share that a compiled version leaves (is it measured?)."""

    begin: Times
    end: Times
    versions: int
    left: tuple[float, float, float]
    measured: bool


def uncompiled(rank: RankCase) -> Uncompiled | None:
    """Uncompiled work: from a failed lookup to the next lookup, the optimizer's step or the end of the step."""
    table = rank.trace.operators
    if table.is_empty():
        return None
    own = table["thread"].to_numpy() == rank.training
    lookups = own & matching(table["name"], lambda name: name == _LOOKUP)
    regions = own & matching(table["name"], lambda name: bool(_REGION.match(name)))
    if not lookups.any():
        return None
    at = table["ts_ns"].to_numpy()
    until = at + table["duration_ns"].to_numpy()
    lookups &= ~rank.workings.tree.below(regions)
    begin = np.sort(until[lookups])
    cuts = np.sort(np.concatenate([at[lookups], rank.optimizer_steps[0], _ends_of_steps(rank)]))
    next_cut = np.searchsorted(cuts, begin, side="left")
    end = np.append(cuts, until.max())[next_cut]
    compiled = np.sort(at[regions])
    hit = np.searchsorted(compiled, end) > np.searchsorted(compiled, begin)
    begin, end = begin[~hit], end[~hit]
    inside = within(at, begin, end) & own
    if not inside.any():
        return None
    share = _measured(rank, regions, inside)
    left = _LEFT if share is None else (share, min(share * _SLOWER, 1.0), min(share * _MOST_OFF, 1.0))
    return Uncompiled(begin, end, _versions(rank, regions), left, share is not None)


def _ends_of_steps(rank: RankCase) -> Times:
    steps = rank.trace.steps
    return (steps["ts_ns"] + steps["duration_ns"]).to_numpy()


def _versions(rank: RankCase, regions: Mask) -> int:
    """How many versions of one function have been compiled at least: they are numbered from 0."""
    names = rank.trace.operators["name"].filter(pl.Series(regions)).cast(str).unique().to_list()
    return max((int(match[2]) + 1 for name in names if (match := _REGION.match(name))), default=0)


def _measured(rank: RankCase, regions: Mask, uncompiled: Mask) -> float | None:
    """The time of compiled functions for each operation of their products, against that of other functions."""
    table, work = rank.trace.operators, rank.workings.work
    compiled = rank.workings.tree.below(regions)
    outermost = regions & ~compiled
    flops = float(work.dense[compiled].sum()), float(work.dense[uncompiled].sum())
    own: NDArray[np.int64] = table["self_ns"].to_numpy()
    times = float(table["duration_ns"].to_numpy()[outermost].sum()), float(own[uncompiled].sum())
    if min(*flops, *times) <= 0:
        return None
    return min((times[0] / flops[0]) / (times[1] / flops[1]), 1.0)
