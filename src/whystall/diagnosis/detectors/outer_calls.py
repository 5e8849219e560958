"""The calls of the training thread that no operator made, in order: what a model's code calls, one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystall._native import nearest_marked
from whystall.diagnosis.rank_case import RankCase


def outer_calls(rank: RankCase) -> NDArray[np.intp]:
    """Their rows in the table of operators, by time."""
    table = rank.trace.operators
    found = np.flatnonzero((rank.workings.tree.parent < 0) & (table["thread"].to_numpy() == rank.training))
    return found[np.argsort(table["ts_ns"].to_numpy()[found], kind="stable")]


def places_among(rank: RankCase, calls: NDArray[np.intp]) -> NDArray[np.int64]:
    """For each operator the place of the call around it among these; -1 where it is in none."""
    tree = rank.workings.tree
    outer = nearest_marked(tree.order, tree.parent, (tree.parent < 0).astype(np.uint8))
    root = np.where(tree.parent < 0, np.arange(len(outer)), outer)
    place = np.full(len(outer) + 1, -1, np.int64)
    place[calls] = np.arange(len(calls))
    return place[root]
