"""Dependencies inside CUDA graphs, where a recording has them: arrows from event to event (torch 2.15).

torch draws an edge of a graph as an arrow of the kind that leads from a launch to its kernel, with a number from 2^40
on: from the end of one device event to the beginning of another, in the lane that either is shown in
(torch/profiler/_cuspy/trace.py). Events of graphs on the host and records of events are no device events: arrows from
and to them are left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.model import Trace

_ARROW: Final = "ac2g"
_FIRST_NUMBER: Final = 1 << 40
_ROUNDED_NS: Final = 1  # of a time in microseconds with three places


def edges_in_graphs(trace: Trace) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows of device events that others wait for inside a CUDA graph, and of those that wait."""
    numbers = trace.flows["id"].cast(pl.Int64)
    if not (numbers >= _FIRST_NUMBER).any():
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    arrows = trace.flows.filter((numbers >= _FIRST_NUMBER) & (trace.flows["category"].cast(pl.String) == _ARROW))
    parts = [
        arrows.filter(pl.col("phase") == ord(phase)).select("id", "thread", at="ts_ns").unique("id", keep="none")
        for phase in ("s", "f")
    ]
    pairs = parts[0].join(parts[1], on="id", suffix="_into").sort("id")
    start = trace.device_events["ts_ns"].to_numpy()
    thread = trace.device_events["thread"].to_numpy()
    before = _at(thread, start + trace.device_events["duration_ns"].to_numpy(), pairs["thread"], pairs["at"])
    after = _at(thread, start, pairs["thread_into"], pairs["at_into"])
    known = (before >= 0) & (after >= 0) & (before != after)
    return before[known], after[known]


def _at(threads: NDArray[np.int32], instants: NDArray[np.int64], thread: pl.Series, at: pl.Series) -> NDArray[np.intp]:
    """The row with an instant on a thread, but for rounding; -1 where there is none, or more than one."""
    wanted, found = np.stack([thread.to_numpy().astype(np.int64), at.to_numpy()]), np.full(len(at), -1, np.intp)
    for own in np.unique(wanted[0]).tolist():
        rows = np.flatnonzero(threads == own)
        rows = rows[np.argsort(instants[rows], kind="stable")]
        seekers = np.flatnonzero(wanted[0] == own)
        first = np.searchsorted(instants[rows], wanted[1][seekers] - _ROUNDED_NS, side="left")
        last = np.searchsorted(instants[rows], wanted[1][seekers] + _ROUNDED_NS, side="right")
        single = last - first == 1
        found[seekers[single]] = rows[first[single]]
    return found
