"""Broadcasts of weights, step after step, between replicas that are alike by themselves."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.diagnosis.detectors.collectives import DDP_FORWARD, Collectives, are, launched_ns, step_of
from whystall.diagnosis.rank_case import RankCase

_BROADCAST: Final = re.compile(r"^broadcast", re.IGNORECASE)
_REDUCTION: Final = re.compile(r"^all_?reduce", re.IGNORECASE)
# Each rank's optimizer takes the step of a part of the weights, and sends that part to all (ZeRO, stage 1).
_ZERO: Final = re.compile(r"^Optimizer\.step#ZeroRedundancyOptimizer\.step$")
# Rare sends may be wanted; batches that one rank reads and sends are of any size.
_IN_MOST: Final = 0.8
_WHOLE: Final = 0.02


def broadcast_again(rank: RankCase, found: Collectives) -> tuple[NDArray[np.bool_], int]:
    """Which of a rank's broadcasts are of weights, and how many times the gradients' bytes they are.

    In nearly every step they have the gradients' bytes, or a whole multiple: two moments go with the weights, or more.
    Applies only beside DistributedDataParallel, which keeps replicas alike; its own broadcasts lie within its forward
    pass.
    """
    nothing = np.zeros(len(found.node), np.bool_)
    broadcasts = are(found, _BROADCAST)
    if not broadcasts.any():
        return nothing, 0
    begin, end, _ = rank.intervals(rank.host_named(lambda name: bool(DDP_FORWARD.match(name)), ("annotations",)))
    count = len(rank.trace.steps)
    if len(begin) < 2 or not count:
        return nothing, 0
    launched = launched_ns(rank, found)
    step = step_of(rank, found)
    sized = (found.size > 0) & (step >= 0)
    shared_out, until, _ = rank.intervals(rank.host_named(lambda name: bool(_ZERO.match(name)), ("annotations",)))
    sends = broadcasts & sized & ~within(launched, begin, end) & ~within(launched, shared_out, until)
    sums = are(found, _REDUCTION) & sized
    sent, reduced = (np.bincount(step[of], weights=found.size[of], minlength=count) for of in (sends, sums))
    trains = reduced > 0
    if not trains.any():
        return nothing, 0
    ratio = sent[trains] / reduced[trains]
    times = round(float(np.median(ratio)))
    whole = (ratio > times * (1 - _WHOLE)) & (ratio < times * (1 + _WHOLE))
    return (sends, times) if times >= 1 and whole.mean() >= _IN_MOST else (nothing, 0)
