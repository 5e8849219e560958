"""Unbroken stretches of Python on the training thread: those of every step, and those of a few steps only."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.host_states import HostState
from whystall.diagnosis.candidate import Recurrence
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask, NodeKind

# A stretch of Python this long is work of its own, not the pause between two operators.
LONG_NS: Final = 60_000
# A stretch this many times as long as the longest of a usual step is an episode.
_RARE: Final = 4.0
_LEAST_RARE_NS: Final = 1_000_000
_MINORITY: Final = 0.5
_NEARLY_ALL: Final = 0.9
_FUNCTION: Final = re.compile(r"^_*[A-Z]\w*(?<!Backward)(?<!Backward\d)$")
"""An operator that a `torch.autograd.Function` made: its own time, without nested operators, is Python.

Those of PyTorch itself have a namespace, or end as the steps of its backward pass do.
"""
_COMPILED: Final = "Compiled"
# A library that carries collectives out on the host, within torch's marks.
_TALKS: Final = re.compile(r"^(gloo|mpi|ucc):")


class _Stretches(NamedTuple):
    """Host nodes of a rank by lane and time, the number of the stretch that each belongs to, and whether it is soft."""

    group: NDArray[np.int64]
    rows: NDArray[np.intp]
    flags: Mask


def _grouped(case: Case, rank: RankCase) -> _Stretches:
    key = ("stretches", rank.rank)
    if key not in case.kept:
        graph, soft = case.replayed, soft_nodes(case, rank)
        rows = case.rows(rank, NodeKind.HOST)
        rows = rows[np.lexsort((rows, graph.lane[rows]))]
        flags, lane, start = soft[rows], graph.lane[rows], graph.start[rows]
        end = start + graph.duration[rows]
        joined = np.zeros(len(rows), bool)
        joined[1:] = (lane[1:] == lane[:-1]) & (start[1:] == end[:-1]) & flags[1:] & flags[:-1]
        case.kept[key] = _Stretches(np.cumsum(~joined) - 1, rows, flags)
    found: _Stretches = case.kept[key]
    return found


def soft_nodes(case: Case, rank: RankCase) -> Mask:
    """The host nodes of a rank in which only Python, or nothing, was seen; a library that communicates is neither."""
    key = ("soft_nodes", rank.rank)
    if key not in case.kept:
        soft = case.host_state(rank, HostState.NONE, HostState.PYTHON)
        functions = rank.host_named(lambda name: bool(_FUNCTION.match(name)) and _COMPILED not in name, ("operators",))
        soft |= case.host_state(rank, HostState.DISPATCH) & case.nodes(rank, host=functions)
        talks = rank.host_named(lambda name: bool(_TALKS.match(name)), ("operators", "annotations"))
        if rank.on_device and talks.any():
            begin, end, _ = rank.intervals(talks)
            soft &= ~case.host_within(rank, begin, end)
        case.kept[key] = soft
    found: Mask = case.kept[key]
    return found


def soft_stretch_ns(case: Case, rank: RankCase) -> NDArray[np.int64]:
    """Per node of a rank the length of its stretch of Python, or of nothing seen; 0 elsewhere."""
    key = ("soft_stretch_ns", rank.rank)
    if key not in case.kept:
        group, rows, flags = _grouped(case, rank)
        sums = np.bincount(group, weights=case.replayed.duration[rows]).astype(np.int64)
        out = np.zeros(len(case.replayed.start), np.int64)
        out[rows] = np.where(flags, sums[group], 0)
        case.kept[key] = out
    found: NDArray[np.int64] = case.kept[key]
    return found


def work_within(case: Case, rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Mask:
    """The host nodes of a rank within intervals, without long pauses, which are no part of the work there.

    An optimizer's step or a hook calls operators one after the other: a millisecond without any is other work.
    """
    pauses = soft_nodes(case, rank) & (soft_stretch_ns(case, rank) >= _LEAST_RARE_NS)
    return case.host_within(rank, begin, end) & ~pauses


def count_of_stretches(case: Case, rank: RankCase, nodes: Mask) -> float:
    """How many unbroken stretches nodes belong to, per step: an interruption of a call does not make it two."""
    group, rows, _ = _grouped(case, rank)
    chosen = rows[nodes[rows]]
    first = np.zeros_like(nodes)
    first[chosen[np.unique(group[nodes[rows]], return_index=True)[1]]] = True
    return count_per_step(case, first)


def long_python(case: Case, rank: RankCase) -> Mask:
    """The nodes of a rank that belong to long stretches of Python, without those of episodes."""
    soft = soft_nodes(case, rank)
    nodes = soft & (soft_stretch_ns(case, rank) >= LONG_NS)
    begin, end = stretches(case, rank, rare=True)
    return nodes & ~case.host_within(rank, begin, end) if len(begin) else nodes


def stretches(case: Case, rank: RankCase, *, rare: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of long stretches on the rank's own clock; ``rare``: only those of a minority of steps.

    A stretch is rare when it is several times as long as the longest one of the median step (without Python stacks: of
    the steps with the shortest).
    """
    graph = case.replayed
    group, rows, flags = _grouped(case, rank)
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first = np.flatnonzero(flags & np.append(True, np.diff(group) != 0))
    length = np.bincount(group, weights=graph.duration[rows])[group[first]].astype(np.int64)
    begin = graph.own_times(rank.rank, graph.start[rows[first]])
    long = length >= LONG_NS
    begin, length = begin[long], length[long]
    if rare:
        steps = rank.trace.steps
        if len(steps) < 4:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        step = np.searchsorted(steps["ts_ns"].to_numpy(), begin, side="right") - 1
        longest = np.zeros(len(steps), np.int64)
        np.maximum.at(longest, np.maximum(step, 0), length)
        # Without stacks a pause that not every step has may be a collection, however frequent.
        known = rank.analysis.signals.get("python_stacks", False)
        usual = float(np.quantile(longest, 0.5 if known else 0.1))
        odd = (length >= _LEAST_RARE_NS) & (length > _RARE * usual) & (step >= 0)
        if len(np.unique(step[odd])) > (_MINORITY if known else _NEARLY_ALL) * len(steps):
            odd[:] = False
        begin, length = begin[odd], length[odd]
    order = np.argsort(begin, kind="stable")
    return begin[order], (begin + length)[order]


def recurrence(case: Case, rank: RankCase, begin: NDArray[np.int64]) -> Recurrence:
    """In how many steps of the window something happens that begins at some instants, and the steps between two.

    Two occurrences in one step count as one step.
    """
    first, last = case.window_on(rank)
    step_of = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), begin, side="right")
    step = np.unique(step_of)
    count = len(np.unique(step_of[(begin >= first) & (begin < last)]))
    period = float(step[-1] - step[0]) / (len(step) - 1) if len(step) > 1 else None
    return Recurrence(count, period)
