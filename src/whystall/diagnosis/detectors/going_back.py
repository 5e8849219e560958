"""The backward operators of a forward pass's operators."""

from __future__ import annotations

import numpy as np

from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching


def backward_of(rank: RankCase, forward: Mask) -> Mask:
    """The nodes of autograd that go back through some operators, by its numbers, and all that they call."""
    table = rank.trace.operators
    if "sequence" not in table.columns:
        return np.zeros(len(table), np.bool_)
    sequence = table["sequence"].fill_null(-1).to_numpy()
    mine = sequence[forward]
    nodes = matching(table["name"], lambda name: name.startswith("autograd::engine"))
    back: Mask = nodes & np.isin(sequence, mine[mine >= 0])
    found: Mask = back | rank.workings.tree.below(back)
    return found
