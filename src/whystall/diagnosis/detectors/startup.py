"""Calls that start something up: the first of their kind, far longer than others of their name, before a steady step.

Creating a context, loading a library, launching a kernel for the first time: what later steps never do again. It is
told as such, counts for no step, and a recording that mostly holds it says nothing of what recurs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.replay.graph import Mask
from whystall.trace.columns import codes, matching
from whystall.trace.link import rows_of
from whystall.trace.model import Trace
from whystall.vocabulary.runtime_calls import is_call

# A call that only checks or queues takes microseconds; context creation, loading and first launches take milliseconds.
_LEAST_NS: Final = 1_000_000
# A first call so many times as long as the median one of its name did something else than they do.
_TIMES_USUAL: Final = 20


def startup_calls(trace: Trace, offsets: Mapping[str, tuple[int, int]]) -> Mask:
    """Which host events (in the numbering of ``offsets``) are calls that start something up."""
    first, last = offsets["runtime_calls"]
    out = np.zeros(last, np.bool_)
    calls = trace.runtime_calls
    if calls.is_empty():
        return out
    name, duration = codes(calls["name"]).astype(np.int64), calls["duration_ns"].to_numpy()
    long_names = np.unique(name[(duration >= _LEAST_NS) & (calls["ts_ns"].to_numpy() < _steady_from(trace))])
    if not len(long_names):
        return out
    # What waits for the device is as long as what it waits for.
    waits = matching(calls["name"], lambda name: is_call(name, "sync", "copy"))
    table = pl.DataFrame(
        {
            "row": np.arange(len(calls)),
            "name": name,
            "kernel": _launched(trace),
            "ts": calls["ts_ns"],
            "ns": calls["duration_ns"],
        }
    ).filter(~waits & np.isin(name, long_names))
    usual = table.group_by("name", maintain_order=True).agg(pl.col("ns").median().alias("usual"), pl.len().alias("all"))
    first_of_kind = table.sort("ts", "row").unique(["name", "kernel"], keep="first", maintain_order=True)
    long = first_of_kind.join(usual, on="name").filter(
        (pl.col("ts") < _steady_from(trace))
        & (pl.col("ns") >= _LEAST_NS)
        & ((pl.col("all") == 1) | (pl.col("ns") >= _TIMES_USUAL * pl.col("usual")))
    )
    out[first + long["row"].to_numpy()] = True
    return out


def _launched(trace: Trace) -> NDArray[np.int64]:
    """Per runtime call the kernel that it launched, or -1: it is loaded when it is launched first."""
    out = np.full(len(trace.runtime_calls), -1, np.int64)
    launch = rows_of(trace.device_events["launch"])
    known = launch >= 0
    out[launch[known]] = codes(trace.device_events["name"])[known]
    return out


def _steady_from(trace: Trace) -> int:
    """The begin of the second step; without step marks all of a recording may be its start."""
    steps = trace.steps
    return int(steps["ts_ns"].sort()[1]) if len(steps) > 1 else np.iinfo(np.int64).max
