"""Small embedding tables that are looked up one by one, one for each column: one table of all rows takes one call.

Beside its lookup, a table costs the same as any parameter: a gradient that is taken over, and its part of an
optimizer's step that goes through parameters one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from whystall.diagnosis.detectors.going_back import backward_of
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask, Times
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import sizes_by_argument
from whystall.vocabulary.autograd import ACCUMULATE

_LEAST: Final = 16
_LOOKS_UP: Final = "aten::embedding"
# Lookups with a longer gap have other work between them; a thread that lost its core is back before.
_PAUSE_NS: Final = 500_000
# The time of larger tables depends on the rows read.
_MOST_ROWS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Tables:
    """``count`` tables that are looked up in a row, begin and end of these rows, and their backward pass.

    ``of_parameters`` are the operators that run for each parameter; the tables are a ``share`` of these.
    """

    count: int
    begin: Times
    end: Times
    back: Mask
    of_parameters: Mask
    share: float


def single_tables(rank: RankCase) -> Tables | None:
    """The lookups of many small tables; ``None`` where there are none, or sizes are not recorded."""
    table, tree = rank.trace.operators, rank.workings.tree
    rows = np.flatnonzero(matching(table["name"], lambda name: name == _LOOKS_UP) & ~tree.below(rank.backward))
    if len(rows) < _LEAST:
        return None
    at, thread = table["ts_ns"].to_numpy(), table["thread"].to_numpy()
    rows = rows[np.lexsort((at[rows], thread[rows]))]
    past = at + table["duration_ns"].to_numpy()
    known = judged(table.select("input_dims")[rows], sizes_by_argument)
    runs: list[list[int]] = [[]]
    for (row, sizes), (after, others) in pairwise([*zip(rows.tolist(), known, strict=True), (-1, ())]):
        small = len(sizes) > 1 and bool(sizes[0]) and bool(sizes[1]) and sizes[0][0][0] <= _MOST_ROWS
        runs[-1] += [row] if small else []
        alike = small and len(others) > 1 and others[1] == sizes[1]
        if not (alike and thread[after] == thread[row] and at[after] - past[row] < _PAUSE_NS):
            runs.append([])
    long = [run for run in runs if len(run) >= _LEAST]
    if not long:
        return None
    begin = np.array([at[run[0]] for run in long], np.int64)
    end = np.array([past[run[-1]] for run in long], np.int64)
    back, of_parameters = np.zeros(len(table), np.bool_), np.zeros(len(table), np.bool_)
    count, share = max(map(len, long)), 0.0  # where something else had the core a row is seen in two parts
    if rank.trains and "sequence" in table.columns:
        looked_up = np.zeros(len(table), np.bool_)
        looked_up[np.concatenate(long)] = True
        back = backward_of(rank, looked_up)
        nodes = matching(table["name"], lambda name: name.startswith("autograd::engine"))
        taken = matching(table["name"], lambda name: name == ACCUMULATE)
        parameters = np.count_nonzero(taken) / max(len(rank.optimizer_steps[0]), 1)
        share = min(count / parameters, 1.0) if parameters else 0.0
        of_parameters = taken | (nodes & matching(table["name"], lambda name: name.endswith(ACCUMULATE)))
    return Tables(
        count,
        begin,
        end,
        back,
        of_parameters | tree.below(of_parameters),
        share,
    )
