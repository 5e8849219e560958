"""One-time work before a steady step: calls far longer than others of their name, compilation, graph capture.

It includes creating a context, loading a library, the first launch of a kernel, recording a graph: later steps never
repeat it. It counts for no step, and a recording that mostly holds it is no evidence about recurring work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.replay.graph import Mask, Times
from whystall.replay.waits import LEAST_QUEUE
from whystall.trace.columns import codes, matching
from whystall.trace.link import rows_of
from whystall.trace.model import Trace
from whystall.vocabulary.episodes import is_episode
from whystall.vocabulary.runtime_calls import is_call

# A call that only checks or queues takes microseconds; context creation, loading and first launches take milliseconds.
_LEAST_NS: Final = 1_000_000
# A first call this many times as long as the median one of its name did something else.
_TIMES_USUAL: Final = 20
# Recurring work happens at least this often in a recording without step marks.
_FEWEST_RECURRING: Final = 3


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
    # A call that waits for the device, or for room in its queue, takes as long as the device does.
    waits = matching(calls["name"], lambda name: is_call(name, "sync", "copy")) | _behind_a_queue(trace)
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
    long = (
        table.sort("ts", "row")
        .with_columns(first=pl.struct("name", "kernel").is_first_distinct())
        .join(usual, on="name", maintain_order="left")
        .filter(
            (pl.col("ns") >= _LEAST_NS)
            & ((pl.col("all") == 1) | (pl.col("ns") >= _TIMES_USUAL * pl.col("usual")))
            & (pl.col("ts") < _steady_from(trace))
        )
        .filter(pl.col("first") | (pl.len().over("name") < _FEWEST_RECURRING))
    )
    out[first + long["row"].to_numpy()] = True
    return out


def preparations(trace: Trace) -> tuple[Times, Times]:
    """Begin and end of the stretches in which a model was compiled or a graph captured, before a steady step.

    They may overlap, and are sorted by begin. In a recording with two steps or more only those of the first are known
    to happen once, and none where later steps take as long for them.
    """
    begin, end = (np.concatenate(parts) for parts in zip(_compilations(trace), *_captures(trace), strict=True))
    early = begin < _steady_from(trace)
    later = int((end - begin)[~early].sum()) / max(len(trace.steps) - 1, 1)
    if later * 2 >= int((end - begin)[early].sum()):
        early = np.zeros(len(begin), np.bool_)
    order = np.argsort(begin[early], kind="stable")
    return begin[early][order], end[early][order]


def _compilations(trace: Trace) -> tuple[Times, Times]:
    """Marks of torch's compiler, in annotations and its Python frames."""
    begin, end = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for table in (trace.annotations, trace.python_functions):
        chosen = table.filter(pl.Series(matching(table["name"], lambda name: is_episode(name, "compilation", "event"))))
        begin.append(chosen["ts_ns"].to_numpy())
        end.append((chosen["ts_ns"] + chosen["duration_ns"]).to_numpy())
    return np.concatenate(begin), np.concatenate(end)


def _captures(trace: Trace) -> list[tuple[Times, Times]]:
    """Per thread its captures of graphs, from their begin to their end, and the calls that instantiate the graphs."""
    calls = trace.runtime_calls
    begins_one = matching(calls["name"], lambda name: is_call(name, "capture_begin"))
    ends_one = matching(calls["name"], lambda name: is_call(name, "capture_end"))
    instantiates = matching(calls["name"], lambda name: is_call(name, "instantiate"))
    begin, thread = calls["ts_ns"].to_numpy(), calls["thread"].to_numpy()
    end = begin + calls["duration_ns"].to_numpy()
    out = [(begin[instantiates], end[instantiates])]
    for one in np.unique(thread[begins_one]).tolist():
        begins = np.sort(begin[begins_one & (thread == one)])
        ends = np.sort(end[ends_one & (thread == one)])
        index = np.searchsorted(ends, begins)
        closed = index < len(ends)
        out.append((begins[closed], ends[index[closed]]))
    return out


def _behind_a_queue(trace: Trace) -> Mask:
    """The runtime calls that begin while many launched events have not ended."""
    at = trace.runtime_calls["ts_ns"].to_numpy()
    events = trace.device_events
    launch = rows_of(events["launch"])
    known = launch >= 0
    launched = np.sort(at[launch[known]])
    ended = np.sort((events["ts_ns"] + events["duration_ns"]).to_numpy()[known])
    queued: Mask = np.searchsorted(launched, at) - np.searchsorted(ended, at, side="right") >= LEAST_QUEUE
    return queued


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
