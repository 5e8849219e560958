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

# cuDNN's and MIOpen's searches record an event before and behind each trial, wait for the second, and take the time
# between. An allocator that is short of memory waits for events, too, but records them elsewhere.
_RECORDS: Final = re.compile(r"^(cuda|hip)EventRecord")
_WAITS: Final = re.compile(r"^(cuda|hip)EventSynchronize")
_TIMES: Final = re.compile(r"^(cuda|hip)EventElapsedTime")
_PAIR: Final = 2


def measured_until(rank: RankCase) -> NDArray[np.int64] | None:
    """Per operator when its last trial was timed, -1 where it times none; a last entry stands for no operator.

    ``None`` where nothing is timed.
    """
    calls = rank.trace.runtime_calls
    operator = rows_of(calls["operator"])
    convolves = np.append(
        matching(rank.trace.operators["name"], lambda name: bool(CONVOLUTION.match(name))), values=False
    )
    records, waits, times = (
        matching(calls["name"], of.search) & convolves[operator] for of in (_RECORDS, _WAITS, _TIMES)
    )
    pairs = np.bincount(operator[records], minlength=len(convolves)) >= _PAIR
    timed = times | (waits & pairs[operator])
    if not timed.any():
        return None
    until = np.full(len(convolves), -1, np.int64)
    np.maximum.at(until, operator[timed], calls["ts_ns"].to_numpy()[timed])
    until[-1] = -1
    return until


def trials(rank: RankCase) -> Mask:
    """The device events that are trials: launched within such a convolution between two records of events.

    Where no records are known: before the last trial was timed.
    """
    events, calls = rank.trace.device_events, rank.trace.runtime_calls
    until = measured_until(rank)
    if until is None:
        return np.zeros(len(events), np.bool_)
    launch = rows_of(events["launch"])
    start = np.append(calls["ts_ns"].to_numpy(), np.iinfo(np.int64).max)
    at, operator = start[launch], rows_of(events["operator"])
    tried: Mask = at < until[operator]
    within = rows_of(calls["operator"])
    rows = np.flatnonzero(matching(calls["name"], lambda name: bool(_RECORDS.search(name))) & (within >= 0))
    order = np.lexsort((start[rows], within[rows]))
    owner, recorded = within[rows][order].astype(np.int64), start[rows][order]
    first = np.searchsorted(owner, operator)
    known = np.append(owner, -1)[first] == operator
    # The number of records before the launch in its operator: if it is odd, a trial is being timed.
    instants = np.unique(np.concatenate([recorded, at]))
    keys = owner * len(instants) + np.searchsorted(instants, recorded)
    place = np.searchsorted(keys, operator * np.int64(len(instants)) + np.searchsorted(instants, at))
    before = place - first
    # Some searches run a kernel once before they time it: then a record follows it directly.
    in_order = np.lexsort((at, operator))
    behind = np.full(len(at), np.iinfo(np.int64).max)
    same = operator[in_order][1:] == operator[in_order][:-1]
    behind[in_order[:-1][same]] = at[in_order][1:][same]
    has_next = np.append(owner, -1)[place] == operator
    next_record = np.where(has_next, np.append(recorded, 0)[place], np.iinfo(np.int64).max)
    leads = np.zeros(len(until), np.bool_)
    leads[operator[known & (before == 0) & tried]] = True
    warmed = leads[operator] & (before % _PAIR == 0) & (next_record < behind)
    return tried & np.where(known, (before % _PAIR == 1) | warmed, True)


def settles(rank: RankCase, until: NDArray[np.int64]) -> bool:
    """Whether most of the measured calls occur again with the same sizes, without being measured."""
    table = rank.trace.operators
    if "input_dims" not in table.columns or table["input_dims"].null_count() == len(table):
        return False
    measured = until[:-1] >= 0
    calls = np.flatnonzero(matching(table["name"], lambda name: bool(CONVOLUTION.match(name))))
    at = table["ts_ns"].to_numpy()
    keys = list(zip(table["name"].cast(str).gather(calls), table["input_dims"].cast(str).gather(calls), strict=True))
    last = {
        key: int(at[row])
        for row, key in sorted(zip(calls.tolist(), keys, strict=True), key=lambda one: at[one[0]])
        if not measured[row]
    }
    own = [(row, key) for row, key in zip(calls.tolist(), keys, strict=True) if measured[row]]
    return bool(2 * sum(last.get(key, -1) > int(at[row]) for row, key in own) > len(own))
