"""Memory of large tensors that is given back to the system: a pause in Python after the last use of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.stretches import LONG_NS, soft_nodes, soft_stretch_ns
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask


def given_back(case: Case, rank: RankCase, chosen: NDArray[np.bool_], within: int = 1) -> Mask:
    """The host's nodes from the end of each chosen operator to the next of its thread that is no view.

    Up to the ``within``-th next one the long pauses count: a variable lives to the end of its function.
    """
    table = rank.trace.operators
    outer = np.flatnonzero(rank.workings.work.counted)
    thread, begin = table["thread"].to_numpy()[outer], table["ts_ns"].to_numpy()[outer]
    order = np.lexsort((begin, thread))
    outer, thread, begin = outer[order], thread[order], begin[order]
    end = begin + table["duration_ns"].to_numpy()[outer]
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


def between(case: Case, rank: RankCase, chosen: NDArray[np.bool_]) -> Mask:
    """The host's nodes from the first to the last of chosen operators in a row, with the pauses between them."""
    table = rank.trace.operators
    outer = np.flatnonzero(table["parent"].is_null().to_numpy() | rank.workings.work.counted)
    thread, begin = table["thread"].to_numpy()[outer], table["ts_ns"].to_numpy()[outer]
    order = np.lexsort((begin, thread))
    outer, thread, begin = outer[order], thread[order], begin[order]
    end = begin + table["duration_ns"].to_numpy()[outer]
    flags = chosen[outer]
    run = np.cumsum(~flags | (np.diff(thread, prepend=-1) != 0))[flags]
    if not len(run):
        return np.zeros(len(case.replayed.start), np.bool_)
    first = np.flatnonzero(np.diff(run, prepend=-1))
    return case.host_within(rank, begin[flags][first], np.maximum.reduceat(end[flags], first))
