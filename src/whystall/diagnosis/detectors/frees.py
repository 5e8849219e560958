"""Large tensors' memory that is returned to the system: a pause in Python after their last use."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.stretches import LONG_NS, soft_nodes, soft_stretch_ns
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask, Times

_ZEROES: Final = re.compile(r"^Optimizer\.zero_grad#")


def given_back(case: Case, rank: RankCase, chosen: NDArray[np.bool_], within: int = 1) -> Mask:
    """The host's nodes from the end of each chosen operator to the next of its thread that is no view.

    Up to the ``within``-th next one the long pauses count: a variable lives to the end of its function.
    """
    outer, thread, begin, end = _by_thread(rank, rank.workings.work.counted)
    which = np.flatnonzero(chosen[outer])

    def until(later: int) -> Mask:
        last = np.minimum(which + later, len(outer) - 1)
        same = thread[last] == thread[which]
        return case.host_within(rank, end[which[same]], begin[last[same]])

    found = until(1)
    if within > 1:
        pauses = soft_nodes(case, rank) & (soft_stretch_ns(case, rank) >= LONG_NS)
        found |= until(within) & pauses
    return found


def dropped_gradients(case: Case, rank: RankCase) -> Mask:
    """The long pauses within an optimizer's zero_grad: large gradients are let go there, and it calls nothing else."""
    begin, end, _ = rank.intervals(rank.host_named(lambda name: bool(_ZEROES.match(name)), ("annotations",)))
    pauses = soft_nodes(case, rank) & (soft_stretch_ns(case, rank) >= LONG_NS)
    return pauses & case.host_within(rank, begin, end)


def between(case: Case, rank: RankCase, chosen: NDArray[np.bool_]) -> Mask:
    """The host's nodes from the first to the last of chosen operators in a row, with the pauses between them."""
    outermost = rank.trace.operators["parent"].is_null().to_numpy()
    outer, thread, begin, end = _by_thread(rank, outermost | rank.workings.work.counted)
    flags = chosen[outer]
    run = np.cumsum(~flags | (np.diff(thread, prepend=-1) != 0))[flags]
    if not len(run):
        return np.zeros(len(case.replayed.start), np.bool_)
    first = np.flatnonzero(np.diff(run, prepend=-1))
    return case.host_within(rank, begin[flags][first], np.maximum.reduceat(end[flags], first))


def _by_thread(rank: RankCase, rows: Mask) -> tuple[NDArray[np.intp], NDArray[np.int32], Times, Times]:
    """Rows of operators thread by thread and by time, with the thread, begin and end of each."""
    table = rank.trace.operators
    found = np.flatnonzero(rows)
    thread, begin = table["thread"].to_numpy()[found], table["ts_ns"].to_numpy()[found]
    order = np.lexsort((begin, thread))
    found, thread, begin = found[order], thread[order], begin[order]
    return found, thread, begin, begin + table["duration_ns"].to_numpy()[found]
