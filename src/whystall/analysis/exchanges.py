"""Kernels in which ranks wait for each other, recognised by their times on several ranks and not by their names.

Such a kernel lasts until the last rank has come: its lengths differ manyfold between ranks, and it ends on all of them
at once. Libraries that exchange tokens of experts or symmetric memory give their kernels names that no table lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.kernel_classes import KernelClass, shipped_class, shown
from whystall.trace.columns import codes, distinct
from whystall.trace.model import Trace

# Fewer occurrences may end together by chance.
_FEWEST: Final = 6
# A kernel that takes less of the device's time on every rank changes no conclusion.
_LEAST_SHARE: Final = 0.01
# The longest of the ranks takes at least this many times as long as the shortest, in a quarter of the occurrences.
_MANYFOLD: Final = 2.0
_LEAST_UNLIKE: Final = 0.25
# The ends lie within this share of the difference of the lengths, in the median.
_TOGETHER: Final = 0.2


def exchanges(traces: Sequence[Trace]) -> list[KernelClass]:
    """A class for each kernel in which the ranks of some traces, one each, wait for each other."""
    if len(traces) < 2 or any(trace.device_events.is_empty() for trace in traces):
        return []
    tables = [_by_name(trace) for trace in traces]
    shared = set(tables[0]).intersection(*tables[1:])
    found = []
    for name in sorted(shared):
        known = shipped_class(name)
        if (known is None or known.class_ == "compute") and _waits([table[name] for table in tables]):
            found.append(KernelClass("communication", "exchange", re.compile(rf"^{re.escape(shown(name))}$")))
    return found


def _by_name(trace: Trace) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The lengths and the ends of the kernels that take enough time, by name, in order of their begin."""
    events = trace.device_events.filter(pl.col("kind").cast(pl.String) == "kernel").sort("ts_ns")
    name, duration = codes(events["name"]), events["duration_ns"].to_numpy()
    end = events["ts_ns"].to_numpy() + duration
    names = distinct(events["name"])
    spent = np.bincount(name, weights=duration, minlength=len(names))
    count = np.bincount(name, minlength=len(names))
    chosen = np.flatnonzero((count >= _FEWEST) & (spent >= _LEAST_SHARE * max(spent.sum(), 1)))
    return {names[one]: (duration[name == one], end[name == one]) for one in chosen.tolist()}


def _waits(occurrences: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> bool:
    """Whether equally frequent work of ranks differs manyfold in length and ends together, on any clocks."""
    if len({len(duration) for duration, _ in occurrences}) > 1:
        return False
    lasts = np.stack([duration for duration, _ in occurrences]).astype(np.float64)
    ends = np.stack([end for _, end in occurrences])
    ends = (ends - ends[:, :1]).astype(np.float64)  # nanoseconds since 1970 are no doubles
    ends -= np.median(ends - ends.mean(axis=0), axis=1, keepdims=True)
    unlike = lasts.max(axis=0) >= _MANYFOLD * np.maximum(lasts.min(axis=0), 1.0)
    if np.count_nonzero(unlike) < max(_LEAST_UNLIKE * lasts.shape[1], _FEWEST / 2):
        return False
    apart = np.ptp(ends, axis=0)[unlike]
    return bool(np.median(apart / np.maximum(np.ptp(lasts, axis=0)[unlike], 1.0)) <= _TOGETHER)
