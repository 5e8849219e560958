"""Chains of elementwise operators on a CPU: each reads the large tensor that the one before wrote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.chains import FUSIBLE_KINDS
from whystall.analysis.intervals import within
from whystall.diagnosis.rank_case import RankCase


@dataclass(frozen=True, slots=True)
class Chains:
    """Per operator the share of its time that is left when its chain is one loop (1 outside of chains).

    ``left`` is as expected, ``most`` where every intermediate is still written, ``least`` where none is.
    """

    left: NDArray[np.float64]
    least: NDArray[np.float64]
    most: NDArray[np.float64]
    count: int
    costliest: list[str]


def elementwise_chains(rank: RankCase, *, calls: int, least_bytes: float) -> Chains | None:
    """The chains of at least ``calls`` calls outside of optimizers' steps, each call of at least ``least_bytes``."""
    table, work = rank.trace.operators, rank.workings.work
    rows = np.flatnonzero(work.counted)
    start, thread = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    rows = rows[np.lexsort((start[rows], thread[rows]))]
    if len(rows) < calls:
        return None
    begin, end, _ = rank.optimizer_steps
    kinds = np.array([kind in FUSIBLE_KINDS for kind in work.kinds] + [False], np.bool_)
    fusible = kinds[work.kind_of[rows]] & work.moved_known[rows] & (work.moved[rows] >= least_bytes)
    fusible &= ~within(start[rows], begin, end)
    handed = work.handed_over(work.call_of[rows].astype(np.int64))
    joined = fusible[1:] & fusible[:-1] & (thread[rows[1:]] == thread[rows[:-1]]) & (handed > 0)
    first = np.flatnonzero(fusible & ~np.append(False, joined))
    last = np.flatnonzero(fusible & ~np.append(joined, False))
    long = last - first + 1 >= calls
    return _of_runs(rank, rows, handed, first[long], last[long]) if long.any() else None


def _of_runs(
    rank: RankCase,
    rows: NDArray[np.intp],
    handed: NDArray[np.int64],
    first: NDArray[np.intp],
    last: NDArray[np.intp],
) -> Chains | None:
    table, moved = rank.trace.operators, rank.workings.work.moved
    names, took = table["name"], table["self_ns"].to_numpy()
    least, most = np.ones(len(table)), np.ones(len(table))
    count, costliest = 0, (0, [""])
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        inside = rows[begin : end + 1]
        called = [str(name) for name in names.gather(inside)]
        # One repeated operator works on other tensors each time (gradients, averages): nothing to fuse.
        if len(set(called)) == 1:
            continue
        between, total = int(handed[begin:end].sum()), max(int(moved[inside].sum()), 1)
        most[inside] = 1 - between / total
        least[inside] = max(1 - 2 * between / total, 1 / len(inside))
        count += 1
        costliest = max(costliest, (int(took[inside].sum()), called))
    return Chains((least + most) / 2, least, most, count, costliest[1]) if count else None
