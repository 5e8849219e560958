"""Convolutions within which a library times algorithms: all but their last kernels are trials."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.detectors.converted_convolutions import CONVOLUTION
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import codes, matching
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
    """The device events that are trials: launched within such a convolution before a record that is waited for.

    A backward call searches twice, and runs the best kernel between: the record behind that one begins a trial. Where
    no records are known, all events before the last trial was timed are trials.
    """
    events, calls = rank.trace.device_events, rank.trace.runtime_calls
    until = measured_until(rank)
    if until is None:
        return np.zeros(len(events), np.bool_)
    launch, operator = rows_of(events["launch"]), rows_of(events["operator"])
    start = np.append(calls["ts_ns"].to_numpy(), np.iinfo(np.int64).max)
    tried: Mask = start[launch] < until[operator]
    records, waits, times = (
        np.append(matching(calls["name"], of.search), values=False) for of in (_RECORDS, _WAITS, _TIMES)
    )
    launches = np.zeros(len(start), np.bool_)
    launches[launch[tried]] = True
    owner = np.append(rows_of(calls["operator"]), -1)
    rows = np.flatnonzero((records | waits | times | launches) & (until[owner] >= 0))
    rows = rows[np.lexsort((start[rows], owner[rows]))]
    place = np.full(len(start), -1, np.int64)
    place[rows] = np.arange(len(rows))
    # Per call in order: the next record of its operator, and the call after that.
    last = len(rows)
    following = np.append(np.minimum.accumulate(np.where(records[rows], np.arange(last), last)[::-1])[::-1], last)
    ends = np.append(rows, -1)  # -1: no call
    own = place[launch[tried]]
    record = following[own]
    behind = np.minimum(record + 1, last)
    here = owner[launch[tried]]
    is_record = (owner[ends[record]] == here) & (record < last)
    timed = is_record & (owner[ends[behind]] == here) & (waits | times)[ends[behind]]
    # Some searches run a kernel once before they time it: then a record follows it, and the same kernel again.
    kernel = np.zeros(len(start), np.int64)
    kernel[launch[tried]] = codes(events["name"])[tried]
    warms = is_record & (record == own + 1) & launches[ends[behind]] & (kernel[ends[behind]] == kernel[ends[own]])
    known = np.isin(here, owner[rows[records[rows]]])
    out = np.zeros(len(events), np.bool_)
    out[np.flatnonzero(tried)[timed | warms | ~known]] = True
    return out


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
