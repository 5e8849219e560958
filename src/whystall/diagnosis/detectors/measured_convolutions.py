"""Convolutions within which a library times algorithms: all but their last kernels are trials."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.detectors.converted_convolutions import CONVOLUTION
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of

# cuDNN's and MIOpen's searches record events around each trial, wait for the second and take the time between.
_TIMES: Final = re.compile(r"^(cuda|hip)Event(ElapsedTime|Synchronize)")


def measured_until(rank: RankCase) -> NDArray[np.int64] | None:
    """Per operator when its last trial was timed, -1 where it times none; a last entry stands for no operator.

    ``None`` where nothing is timed.
    """
    calls = rank.trace.runtime_calls
    timed = matching(calls["name"], lambda name: bool(_TIMES.search(name)))
    if not timed.any():
        return None
    operator = rows_of(calls["operator"])
    convolves = matching(rank.trace.operators["name"], lambda name: bool(CONVOLUTION.match(name)))
    timed &= np.append(convolves, values=False)[operator]
    if not timed.any():
        return None
    until = np.full(len(rank.trace.operators) + 1, -1, np.int64)
    np.maximum.at(until, operator[timed], calls["ts_ns"].to_numpy()[timed])
    until[-1] = -1
    return until


def trials(rank: RankCase) -> Mask:
    """The device events that are trials: launched within such a convolution before its last trial was timed."""
    events, calls = rank.trace.device_events, rank.trace.runtime_calls
    until = measured_until(rank)
    if until is None:
        return np.zeros(len(events), np.bool_)
    launch = rows_of(events["launch"])
    at = np.append(calls["ts_ns"].to_numpy(), np.iinfo(np.int64).max)
    tried: Mask = at[launch] < until[rows_of(events["operator"])]
    return tried
