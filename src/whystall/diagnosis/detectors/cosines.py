"""Pairwise cosine similarities of two sets of vectors: torch divides, multiplies and sums for each pair.

``torch.nn.functional.cosine_similarity`` makes six passes over large tensors, some of the size of the larger side, some
of all pairs; a product of normalised vectors makes one.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.going_back import backward_of
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import sizes_by_argument

_LEAST_ELEMENTS: Final = 1 << 18
# The smaller side is no more than this share of all: else there is one partner for each.
_SMALLER: Final = 1 / 4
# Time of a product with normalised vectors relative to it, for four sizes of 1.3 to 26 M numbers: 0.04 to 0.09.
_LEFT: Final = (0.03, 0.1, 0.3)


def cosines(rank: RankCase) -> Wasted | None:
    """Such calls of forward passes; ``None`` where there are none, or sizes are not recorded."""
    table, below = rank.trace.operators, rank.workings.tree.below
    called = matching(table["name"], lambda name: name == "aten::cosine_similarity")
    rows = np.flatnonzero(called & ~(rank.backward | below(rank.backward)))
    pairs = judged(table.select("input_dims")[rows], _pairs)
    marked = np.zeros(len(table), np.bool_)
    marked[rows[np.array(pairs, np.int64) > 0]] = True
    if not marked.any():
        return None
    marked |= below(marked)
    return Wasted(
        operators=marked | backward_of(rank, marked),
        left=_LEFT,
        what="in cosine similarities, with their backward pass",
        facts=(evidence.count("pairs of vectors at a time, at most", max(pairs)),),
        method="replay: one product of vectors that are normalised before, by measured shares",
        detail="cosine similarity divides and multiplies all vectors in each call",
        remedy="normalised",
    )


def _pairs(dims: str | None) -> int:
    """How many pairs of vectors are compared; 0 where they are few, or each has a partner of its own."""
    sizes = [given[0] for given in sizes_by_argument(dims)[:2] if len(given) == 1]
    if len(sizes) != 2:
        return 0
    try:
        shape = np.broadcast_shapes(*sizes)
    except ValueError:
        return 0
    whole, least = prod(shape), min(prod(size) for size in sizes)
    return prod(shape[:-1]) if whole >= _LEAST_ELEMENTS and least <= _SMALLER * whole else 0
