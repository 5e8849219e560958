"""Kinds of waits of the host for the device, weighed by the idle time of the device around them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.around import within_library, within_operators
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.vocabulary.waits import WaitRow, wait_rows

_UNKNOWN: Final = ""


def calls_of_kind(rank: RankCase, calls: Mask, kind: str) -> Mask:
    """Which of some calls that wait (host events of a rank) are of a kind."""
    first, last = rank.offsets["runtime_calls"]
    rows = np.flatnonzero(calls[first:last])
    out = np.zeros(len(calls), np.bool_)
    out[first + rows[np.array(_kinds(rank, rows)) == kind]] = True
    return out


def operators_around(rank: RankCase, calls: Mask, kind: str) -> str:
    """The operators by which some calls (host events of a rank) are of a kind, the most frequent one's name."""
    first, last = rank.offsets["runtime_calls"]
    row = next(one for one in wait_rows() if one.kind == kind)
    table = rank.trace.operators
    named = matching(table["name"], row.operator.search) if row.operator is not None else np.zeros(len(table), np.bool_)
    parent = rows_of(table["parent"])
    at = rows_of(rank.trace.runtime_calls["operator"])[np.flatnonzero(calls[first:last])]
    found: Counter[str] = Counter()
    while len(at := at[at >= 0]):
        found.update(table["name"].cast(str).gather(at[named[at]]).to_list())
        at = parent[at[~named[at]]]
    return max(found, key=lambda name: (found[name], name), default="")


def kinds_of_waits(case: Case, rank: RankCase, calls: Mask) -> list[tuple[str, float]]:
    """Kinds of some waits (host events of a rank) by their share of the device's idle time around them in the window.

    The largest comes first. Where the device does not idle around any, the number of waits counts.
    """
    first, last = rank.offsets["runtime_calls"]
    begin, end = case.window_on(rank)
    table = rank.trace.runtime_calls
    start = table["ts_ns"].to_numpy()
    rows = np.flatnonzero(calls[first:last] & (start >= begin) & (start < end))
    if not len(rows):
        return []
    idle = idle_around_ns(rank, (start + table["duration_ns"].to_numpy())[rows])
    weight = idle if idle.any() else np.ones(len(rows), np.int64)
    sums: Counter[str] = Counter()
    for kind, own in zip(_kinds(rank, rows), weight.tolist(), strict=True):
        sums[kind] += own
    whole = sum(sums.values())
    order = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return [(kind, own / whole) for kind, own in order if kind != _UNKNOWN]


def words_for(kind: str) -> str:
    """The words for a kind of wait in a report."""
    return next(row.named for row in wait_rows() if row.kind == kind)


def idle_of_calls(rank: RankCase, calls: Mask) -> NDArray[np.int64]:
    """Per host event of a rank how long its devices idle around the end of the call, for some runtime calls; else 0."""
    first, last = rank.offsets["runtime_calls"]
    table = rank.trace.runtime_calls
    rows = np.flatnonzero(calls[first:last])
    out = np.zeros(len(calls), np.int64)
    if rank.trace.device_events.is_empty():
        return out
    out[first + rows] = idle_around_ns(rank, (table["ts_ns"].to_numpy() + table["duration_ns"].to_numpy())[rows])
    return out


def _kinds(rank: RankCase, calls: NDArray[np.intp]) -> list[str]:
    """The kind of each of some runtime calls (rows)."""
    table = rank.trace.runtime_calls
    frame, operator = (rows_of(table[name])[calls].astype(np.int64) for name in ("frame", "operator"))
    kinds = np.full(len(calls), _UNKNOWN, object)
    for row in wait_rows():
        kinds[(kinds == _UNKNOWN) & _matches(rank, row, calls, frame, operator)] = row.kind
    return list(kinds)


def _matches(
    rank: RankCase, row: WaitRow, calls: NDArray[np.intp], frame: NDArray[np.int64], operator: NDArray[np.int64]
) -> Mask:
    out = operator < 0 if row.bare else np.ones(len(operator), np.bool_)
    if row.after is not None and out.any():
        named = matching(rank.trace.operators["name"], row.after.search)
        out &= named.any() and np.append(named, False)[_operators_before(rank, calls)]
    if row.mark is not None and out.any():
        out &= _within_marks(rank, calls, row.mark)
    if row.operator is not None:
        out &= within_operators(rank, operator, row.operator)
    if row.copy is not None and out.any():
        events = rank.trace.device_events
        copies = matching(events["name"], row.copy.search)
        out &= np.isin(operator, np.unique(rows_of(events["operator"])[copies])) & (operator >= 0)
    if row.frame is not None and out.any():
        out &= within_library(rank, frame, operator, row.frame)
    return out


def _within_marks(rank: RankCase, calls: NDArray[np.intp], mark: re.Pattern[str]) -> Mask:
    """Which runtime calls lie in an annotation of their thread whose name a pattern finds."""
    table, calls_of = rank.trace.annotations, rank.trace.runtime_calls
    marked = matching(table["name"], mark.search)
    begin, thread = table["ts_ns"].to_numpy()[marked], table["thread"].to_numpy()[marked]
    end = begin + table["duration_ns"].to_numpy()[marked]
    start, on = calls_of["ts_ns"].to_numpy()[calls], calls_of["thread"].to_numpy()[calls]
    out = np.zeros(len(calls), np.bool_)
    for one in np.unique(thread):
        out[on == one] = within(start[on == one], begin[thread == one], end[thread == one])
    return out


def _operators_before(rank: RankCase, calls: NDArray[np.intp]) -> NDArray[np.int64]:
    """The outermost operator that began last before each of some runtime calls on its thread; -1: none."""
    table, operators = rank.trace.runtime_calls, rank.trace.operators
    outer = np.flatnonzero(rows_of(operators["parent"]) < 0)
    at = operators["ts_ns"].to_numpy()[outer]
    outer = outer[np.argsort(at, kind="stable")]
    at, threads = operators["ts_ns"].to_numpy()[outer], operators["thread"].to_numpy()[outer]
    start, thread = table["ts_ns"].to_numpy()[calls], table["thread"].to_numpy()[calls]
    out = np.full(len(calls), -1, np.int64)
    for one in np.unique(thread):
        own, mine = outer[threads == one], thread == one
        before = np.searchsorted(at[threads == one], start[mine]) - 1
        out[mine] = np.append(own, -1)[before]
    return out


def idle_around_ns(rank: RankCase, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """How long no event runs on the rank's devices around each instant; 0 where one runs then."""
    table = rank.trace.device_events
    start = table["ts_ns"].to_numpy()
    order = np.argsort(start, kind="stable")
    begin = start[order]
    end = np.maximum.accumulate(begin + table["duration_ns"].to_numpy()[order])
    after = np.searchsorted(begin, at)
    before = end[np.clip(after - 1, 0, len(end) - 1)]
    known = (after > 0) & (after < len(begin)) & (before <= at)
    idle = begin[np.minimum(after, len(begin) - 1)] - before
    return np.where(known, np.maximum(idle, 0), 0)
