"""Runtime calls as rules see them: the host's waits, the operators around them, and the work that hides them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.analysis.results import Device
from whystall.analysis.steadiness import usual
from whystall.diagnosis.case import Case
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import EdgeKind, Mask, Nodes
from whystall.trace.link import rows_of
from whystall.vocabulary.runtime_calls import is_call

# Below this share of the time the device's work does not hide the host's.
_MOSTLY_BUSY: Final = 0.5


def hidden(rank: RankCase, what: str) -> str:
    """The sentence on a large cost whose removal gains nothing.

    The device is busy meanwhile, or idle all the same.
    """
    busy = max((_busy(device) for device in rank.analysis.devices), default=0.0)
    if busy >= _MOSTLY_BUSY:
        return f"{what}, but the device is busy meanwhile: leave it"
    return f"{what}, yet without that the device, busy {busy * 100:.1f} % of the time, would idle all the same"


def _busy(device: Device) -> float:
    """The busy share of a device in its usual step (one may have compiled), or in the whole recording without any."""
    parts = device.steps or (device,)
    return float(np.median([part.busy_ns / max(part.window_ns, 1) for part in parts]))


def count_per_step(case: Case, nodes: Mask) -> float:
    """How many of the nodes there are in a steady step, on average; without steps those in the replayed window."""
    if not case.has_steps or any(len(rank.trace.steps) < 2 for rank in case.ranks):
        return int(np.count_nonzero(case.in_window(nodes))) / max(case.steps, 1)
    total = 0.0
    for rank in case.ranks:
        step = case.step_of(rank, np.flatnonzero(nodes & (case.replayed.rank == rank.rank)))
        total += _mean_of_steady(step, len(rank.trace.steps))
    return total


def calls_per_step(case: Case, rank: RankCase, calls: Mask) -> float:
    """How many of some host events begin in a steady step, on average; without steps those in the replayed window."""
    begin, _, _ = rank.intervals(calls)
    if case.has_steps and len(rank.trace.steps) > 1:
        return _mean_of_steady(rank.step_at(begin), len(rank.trace.steps))
    first, last = case.window_on(rank)
    return int(np.count_nonzero((begin >= first) & (begin < last))) / max(case.steps, 1)


def _mean_of_steady(step: NDArray[np.int64], steps: int) -> float:
    counts = np.bincount(step[step >= 0], minlength=steps)
    return float(np.mean(counts[usual(steps)]))


def once_per_operator(rank: RankCase, calls: Mask) -> Mask:
    """The last of some calls in each operator (torch copies a value and waits for the copy), and those in none."""
    first, last = rank.offsets["runtime_calls"]
    operator = rows_of(rank.trace.runtime_calls["operator"])
    rows = np.flatnonzero(calls[first:last])
    own = operator[rows]
    _, index = np.unique(own[::-1], return_index=True)
    kept = np.isin(np.arange(len(rows)), len(rows) - 1 - index) | (own < 0)
    out = np.zeros(len(calls), np.bool_)
    out[first + rows[kept]] = True
    return out


def operators_with(rank: RankCase, calls: Mask) -> NDArray[np.intp]:
    """The operators in which some runtime calls were made."""
    operator = _operator_of(rank, calls)
    return np.unique(operator[operator >= 0]).astype(np.intp)


def callers(rank: RankCase, calls: Mask) -> list[str]:
    """The names of the operators in which calls were made, the most frequent first."""
    operator = _operator_of(rank, calls)
    counts: dict[str, int] = {}
    for row in operator[operator >= 0].tolist():
        name = rank.trace.operators["name"][row]
        counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))


def _operator_of(rank: RankCase, calls: Mask) -> NDArray[np.int32]:
    first, last = rank.offsets["runtime_calls"]
    return rows_of(rank.trace.runtime_calls["operator"])[calls[first:last]]


def waits_within(case: Case, rank: RankCase, calls: Mask) -> Mask:
    """The edges by which the host waits for the device in some calls."""
    begin, end, _ = rank.intervals(calls)
    return waits_before(case, case.host_within(rank, begin, end + 1))


def waits_before(case: Case, nodes: Mask) -> Mask:
    """The edges by which some host nodes wait for the device."""
    graph = case.replayed
    waits: Mask = (graph.edge_kind == EdgeKind.SYNC) & nodes[graph.target]
    return waits


def waits_beside(rank: RankCase, calls: Mask) -> Mask:
    """The calls that wait for the device in the same operators as some calls: torch waits so for its own copy."""
    first, last = rank.offsets["runtime_calls"]
    operator = rows_of(rank.trace.runtime_calls["operator"])
    waits = rank.host_named(lambda name: is_call(name, "sync"), ("runtime_calls",))[first:last]
    beside = np.zeros(len(calls), np.bool_)
    beside[first:last] = waits & (operator >= 0) & np.isin(operator, operators_with(rank, calls))
    return beside


def waiting_calls(case: Case, rank: RankCase, after: Nodes) -> Mask:
    """The calls that wait by their nature, or that copied and waited for the copy: those in which waits ended.

    ``after`` are the nodes with which the host went on. Those after the job's last one are left out.
    """
    calls = rank.host_named(lambda name: is_call(name, "sync", "copy"), ("runtime_calls",))
    rows = np.flatnonzero(calls)
    first, _ = rank.offsets["runtime_calls"]
    table = rank.trace.runtime_calls
    begin = table["ts_ns"].to_numpy()[rows - first]
    end = begin + table["duration_ns"].to_numpy()[rows - first]
    ended = np.sort(case.replayed.own_times(rank.rank, case.replayed.start[after]))
    waited = np.searchsorted(ended, end, side="right") > np.searchsorted(ended, begin, side="right")
    calls[rows[~(waited & rank.of_the_job(begin))]] = False
    return calls


def waited_ns(case: Case, rank: RankCase, calls: Mask, after: Nodes) -> int:
    """The host's waiting time in calls, per step: from the end of its last work to its next, within the window."""
    graph = case.replayed
    begin, end, _ = rank.intervals(calls)
    instants = graph.own_times(rank.rank, graph.start[after])
    goes_on = np.zeros(len(graph.start), np.bool_)
    goes_on[after[within(instants - 1, begin, end)]] = True
    edges = (graph.edge_kind == EdgeKind.PROGRAM) & (goes_on & ~case.startup)[graph.target]
    source = graph.source[edges].astype(np.int64)
    first, last = case.replayed_window
    until = np.minimum(graph.start[graph.target[edges]], last)
    waited = until - np.maximum(graph.start[source] + graph.duration[source], first)
    # Nothing follows the waits at the end of the recording.
    passed = np.sort(instants)
    at_the_end = (begin > rank.last_launch) & (
        np.searchsorted(passed, end, side="right") == np.searchsorted(passed, begin, side="right")
    )
    first, last = case.window_on(rank)
    more = np.minimum(end, last) - np.maximum(begin, first)
    return int(np.maximum(waited, 0).sum() + np.maximum(more[at_the_end], 0).sum()) // max(case.steps, 1)
