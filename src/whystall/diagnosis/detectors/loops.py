"""Loops over tensors that call a few operators over and over, and the host's work while the device idles."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import runs
from whystall.diagnosis.case import Case
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask, NodeKind, Times
from whystall.trace.columns import codes, matching
from whystall.trace.link import rows_of

_IN_PLACE: Final = re.compile(r"[a-z0-9]_$")
_ELEMENTS: Final = frozenset({"elementwise", "reduction", "copy", "set", "random"})


def while_idle(case: Case, rank: RankCase) -> Mask:
    """The host nodes of a rank in whose middle none of its device events runs."""
    graph = case.replayed
    out = np.zeros(len(graph.start), np.bool_)
    device = case.rows(rank, NodeKind.DEVICE)
    host = case.rows(rank, NodeKind.HOST)
    if not len(device) or not len(host):
        return out
    device = device[np.argsort(graph.start[device], kind="stable")]
    ends = np.maximum.accumulate(graph.start[device] + graph.duration[device])
    middle = graph.start[host] + graph.duration[host] // 2
    before = np.searchsorted(graph.start[device], middle, side="right") - 1
    out[host[(before < 0) | (ends[np.maximum(before, 0)] <= middle)]] = True
    return out


def loops_of_calls(rank: RankCase, *, most_calls: int, least_rounds: int) -> tuple[Times, Times]:
    """Begin and end of stretches in which up to ``most_calls`` operators are called in turn, ``least_rounds`` times.

    Only outermost operators count that launch something: views and what an operator calls are no rounds of their own.
    A round changes a tensor in place: a chain in which each result is the next input is no loop over tensors. Layers
    repeat as well, forward and backward, but not without kernels that do more than go through elements.
    """
    table = rank.trace.operators
    launches = ~rank.trace.device_events["operator"].is_null().to_numpy()
    outer = np.flatnonzero(_around(rank, launches) & (rows_of(table["parent"]) < 0))
    thread, start = table["thread"].to_numpy()[outer], table["ts_ns"].to_numpy()[outer]
    order = np.lexsort((start, thread))
    outer, thread = outer[order], thread[order]
    other = (_around(rank, ~_goes_through_elements(rank)) | rank.backward)[outer]
    # A call that is no part of such a loop is like no other.
    name = np.where(other, -1 - np.arange(len(outer)), codes(table["name"]).astype(np.int64)[outer])
    looped = np.zeros(len(outer), np.bool_)
    for period in range(1, most_calls + 1):
        looped |= _repeats(name, thread, period, least_rounds)
    first, behind = runs(looped)
    last = behind - 1
    in_place = np.append(0, np.cumsum(matching(table["name"], _IN_PLACE.search)[outer]))
    changes = (in_place[last + 1] - in_place[first]) * most_calls >= last + 1 - first
    first, last = first[changes], last[changes]
    begin = table["ts_ns"].to_numpy()
    end = begin + table["duration_ns"].to_numpy()
    return begin[outer[first]], end[outer[last]]


def _goes_through_elements(rank: RankCase) -> Mask:
    """Which device events are of kernels that only go through elements, or copy them."""
    classified = rank.workings.classified
    simple = np.array([family in _ELEMENTS for family in classified.families], np.bool_)
    return simple[classified.family_of]


def _around(rank: RankCase, events: Mask) -> Mask:
    """Which operators launched some device events, themselves or by what they call."""
    table = rank.trace.operators
    out = np.zeros(len(table), np.bool_)
    launcher = rows_of(rank.trace.device_events["operator"])[events]
    at = np.unique(launcher[launcher >= 0])
    parent = rows_of(table["parent"])
    while len(at):
        out[at] = True
        above = parent[at]
        at = np.unique(above[above >= 0])
        at = at[~out[at]]
    return out


def _repeats(name: NDArray[np.int64], thread: NDArray[np.int64], period: int, least_rounds: int) -> Mask:
    """Which calls lie in a run that repeats itself with a period."""
    out = np.zeros(len(name), np.bool_)
    if len(name) <= period:
        return out
    same = (name[period:] == name[:-period]) & (thread[period:] == thread[:-period])
    for first, last in zip(*runs(same), strict=True):
        if last - first >= (least_rounds - 1) * period:
            out[first : last + period] = True
    return out
