"""Gradients that a job's own code averages over the ranks, without a wrapper that marks its passes."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.detectors.collectives import Collectives, are, launched_ns
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of
from whystall.trace.recorded_sizes import first_elements
from whystall.vocabulary.autograd import ACCUMULATE

_ENGINE: Final = "autograd::engine"
_SUM: Final = re.compile(r"^all_?reduce", re.IGNORECASE)
# Bytes of a gradient's element in a message: some send half of the precision that they keep.
_WIDTHS: Final = np.array([2, 4, 8])
_WHOLE: Final = 0.02


def averaged_by_hand(rank: RankCase, found: Collectives) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which of a rank's reductions sum the gradients of a backward pass, and when passes begin.

    From the beginning of a pass to that of the next one, these reductions have together the same number of elements as
    the gradients of the pass. That excludes a model's own messages, a loss or a norm. Passes none of which adds to the
    gradients of another (two models that learn in turn) have gradients of their own.
    """
    begins = _backward_passes(rank)
    sums = are(found, _SUM) & (found.size > 0)
    nothing = np.zeros(len(found.node), np.bool_)
    if not len(begins) or not sums.any():
        return nothing, begins
    table = rank.trace.operators
    made = np.flatnonzero(matching(table["name"], ACCUMULATE.__eq__))
    numbers = np.array(judged(table.select("input_dims")[made], first_elements), np.float64)
    of_made = np.searchsorted(begins, table["ts_ns"].to_numpy()[made], side="right") - 1
    of_sum = np.searchsorted(begins, launched_ns(rank, found), side="right") - 1
    sums &= of_sum >= 0
    gradients = np.bincount(of_made[of_made >= 0], weights=numbers[of_made >= 0], minlength=len(begins))
    sent = np.bincount(of_sum[sums], weights=found.size[sums], minlength=len(begins))
    width = sent / np.maximum(gradients, 1)
    whole = (np.abs(width[:, None] / _WIDTHS - 1) < _WHOLE).any(axis=1)
    adds = np.searchsorted(begins, _additions(rank), side="right") - 1
    added = np.bincount(adds[adds >= 0], minlength=len(begins) + 1) > 0
    whole &= added[:-1] | added[1:]
    return sums & whole[np.maximum(of_sum, 0)], begins


def _additions(rank: RankCase) -> NDArray[np.int64]:
    """When a gradient was added to one that was there."""
    table = rank.trace.operators
    below = rows_of(table["parent"])
    adds = matching(table["name"], lambda name: name in ("aten::add_", "aten::add")) & (below >= 0)
    of_gradients = matching(table["name"], ACCUMULATE.__eq__)
    return np.asarray(table["ts_ns"].to_numpy()[adds & of_gradients[np.maximum(below, 0)]], np.int64)


def _backward_passes(rank: RankCase) -> NDArray[np.int64]:
    """When backward passes begin: where autograd goes back after products of a forward pass, which lie outside it."""
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()
    engine = matching(table["name"], lambda name: name.startswith(_ENGINE))
    forward = np.sort(at[(rank.workings.work.dense > 0) & ~rank.workings.tree.below(engine)])
    back = np.sort(at[engine])
    before = np.searchsorted(forward, back)
    return np.asarray(back[np.diff(before, prepend=0) > 0], np.int64)
