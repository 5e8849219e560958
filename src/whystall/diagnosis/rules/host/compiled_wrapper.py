"""Compiled regions that launch kernel after kernel from Python, and hold the device up by it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.kernels import close_up
from whystall.diagnosis.detectors.stretches import work_within
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Change, Mask, Times
from whystall.trace.columns import codes, matching
from whystall.vocabulary.runtime_calls import is_call

CAUSE: Final = cause_beside(__name__)
_REPLAY_NS: Final = CAUSE.threshold("replay_ns")
_GRAPH_GAP_NS: Final = int(CAUSE.threshold("graph_gap_ns"))
# torch's mark of a call of Inductor's code, with its key in the cache.
_CALL: Final = re.compile(r"^## Call CompiledFxGraph ")
_LEAST_CALLS: Final = 2


def in_trace(case: Case) -> Iterator[Replayed]:
    """Calls of compiled graphs that could be replayed: all of one name launch the same, and none waits."""
    for rank in case.ranks:
        begin, end = _calls(rank)
        if len(begin):
            yield _as_graphs(case, rank, begin, end)


def _calls(rank: RankCase) -> tuple[Times, Times]:
    """When calls of compiled graphs begin and end, in order."""
    marks = rank.trace.annotations
    marks = marks.filter(pl.Series(matching(marks["name"], lambda name: bool(_CALL.match(name))))).sort("ts_ns")
    begin = marks["ts_ns"].to_numpy()
    end = begin + marks["duration_ns"].to_numpy()
    launched = _launched(rank, begin, end)
    other = _making(rank, begin, end)
    name = codes(marks["name"])
    keep = np.zeros(len(begin), np.bool_)
    for one in np.unique(name).tolist():
        own = np.flatnonzero(name == one)
        same = len({launched[row] for row in own.tolist()}) == 1
        keep[own] = same and len(own) >= _LEAST_CALLS and bool(launched[own[0]]) and not other[own].any()
    return begin[keep], end[keep]


def _launched(rank: RankCase, begin: Times, end: Times) -> list[tuple[tuple[int, ...], ...]]:
    """Per call the kernels that it launches, in order: their names and, where they are known, their blocks."""
    events = rank.trace.device_events
    rows = np.flatnonzero(within(rank.launch_time, begin, end))
    rows = rows[np.argsort(rank.launch_time[rows], kind="stable")]
    at = rank.launch_time[rows]
    grid = events["grid"].to_physical().cast(pl.Int64).fill_null(-1).to_numpy() if "grid" in events.columns else None
    name = codes(events["name"])
    values = np.stack([name[rows], grid[rows] if grid is not None else np.zeros(len(rows))], axis=1).astype(np.int64)
    first, last = np.searchsorted(at, begin), np.searchsorted(at, end)
    return [tuple(map(tuple, values[a:b].tolist())) for a, b in zip(first.tolist(), last.tolist(), strict=True)]


def _making(rank: RankCase, begin: Times, end: Times) -> NDArray[np.bool_]:
    """Which calls of compiled graphs launch a graph, or wait for the device, which no graph can."""
    table = rank.trace.runtime_calls
    at = np.sort(table["ts_ns"].to_numpy()[matching(table["name"], lambda name: is_call(name, "graph", "sync"))])
    found: NDArray[np.bool_] = np.searchsorted(at, end) > np.searchsorted(at, begin)
    return found


def _as_graphs(case: Case, rank: RankCase, begin: Times, end: Times) -> Replayed:
    host = work_within(case, rank, begin, end)
    work = case.nodes(rank, device=rank.launched_in(begin, end))
    first, last = case.window_on(rank)
    calls = int(np.count_nonzero((begin >= first) & (begin < last)))
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=case.time_of(host),
        evidence=(
            evidence.count("calls of compiled graphs", calls / max(case.steps, 1), per=case.per),
            evidence.time("host time in them", case.time_of(host), case.events_of(host), per=case.per),
            evidence.time("device time of what they launch", case.time_of(work), per=case.per),
        ),
        removal=Change(duration=_at_once(case, rank, begin, host), lag=close_up(case, work, _GRAPH_GAP_NS)),
        method="replay: each call of a compiled graph as one launch",
        ranks=(rank.rank,),
        uncertainty=0.25,
        confidence=0.85,
        rivals=("host.launch-bound", "host.python"),
    )


def _at_once(case: Case, rank: RankCase, begin: Times, host: Mask) -> NDArray[np.int64]:
    """The durations of nodes, with each call as long as replaying a graph takes, all of it before the first launch."""
    graph = case.replayed
    nodes = np.flatnonzero(host)
    nodes = nodes[np.argsort(graph.start[nodes], kind="stable")]
    own = np.searchsorted(begin, graph.own_times(rank.rank, graph.start[nodes]), side="right") - 1
    taken = np.bincount(own, weights=graph.duration[nodes], minlength=len(begin))
    first = np.flatnonzero(np.diff(own, prepend=-1))
    out = np.where(host, 0, graph.duration)
    out[nodes[first]] = np.minimum(taken, _REPLAY_NS)[own[first]].astype(np.int64)
    return out


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "launch_calls")),))
