"""Copies within a device directly before and after replayed graphs: into their fixed inputs, out of their results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import without_gaps
from whystall.diagnosis.detectors.kernels import prompt
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Change, Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.vocabulary.copies import BOTH_WAYS
from whystall.vocabulary.runtime_calls import is_call

CAUSE: Final = cause_beside(__name__)
_NEEDED: Final = CAUSE.threshold("needed")
_COPIES: Final = re.compile(r"^aten::(_foreach_)?copy_$")
_WITHIN: Final = re.compile(r"DtoD|DeviceToDevice")
_LEAST_REPLAYS: Final = 2


def in_trace(case: Case) -> Iterator[Replayed]:
    """Copies next to launches of graphs, in the order of launches."""
    for rank in case.ranks:
        graphs = _of_graphs(rank)
        launches = rows_of(rank.trace.device_events["launch"])[graphs]
        if len(np.unique(launches)) < _LEAST_REPLAYS:
            continue
        copies = _beside(rank, graphs)
        if copies.any():
            yield _without_copies(case, rank, copies, len(np.unique(launches)))


def _of_graphs(rank: RankCase) -> Mask:
    """The device events that launches of graphs ran."""
    calls = matching(rank.trace.runtime_calls["name"], lambda name: is_call(name, "graph"))
    launch = rows_of(rank.trace.device_events["launch"])
    found: Mask = (launch >= 0) & np.append(calls, False)[launch]
    return found


def _beside(rank: RankCase, graphs: Mask) -> Mask:
    """The copies that lead up to a graph or follow one; copies from and to the host may lie in between."""
    copies = _copies(rank)
    crossing = rank.device_named(lambda name: any(text in name for way in BOTH_WAYS for text in way))
    rows = np.flatnonzero((rank.launch_time >= 0) & ~crossing)
    rows = rows[np.argsort(rank.launch_time[rows], kind="stable")]
    moved, played = copies[rows], graphs[rows]
    first = np.flatnonzero(np.diff(moved.astype(np.int8), prepend=-1))
    before = np.where(first > 0, played[first - 1], False)
    after = np.append(played, False)[np.append(first[1:], len(rows))]
    chosen = np.repeat(before | after, np.diff(first, append=len(rows))) & moved
    out = np.zeros(len(copies), np.bool_)
    out[rows[chosen]] = True
    return out


def _copies(rank: RankCase) -> Mask:
    """Copies from device memory to the same device's, by their recorded kind or by the operator that copies."""
    operator = rows_of(rank.trace.device_events["operator"])
    by_operator = np.append(matching(rank.trace.operators["name"], lambda name: bool(_COPIES.match(name))), False)
    kernel = (rank.trace.device_events["kind"] == "kernel").to_numpy()
    found: Mask = rank.device_named(_WITHIN.search) | (kernel & by_operator[operator])
    return found


def _whole_calls(rank: RankCase, events: Mask) -> NDArray[np.int64]:
    """The outermost operators of torch's that launched copies, such as clone."""
    table = rank.trace.operators
    torchs = matching(table["name"], lambda name: name.startswith("aten::"))
    parent = rows_of(table["parent"]).astype(np.int64)
    operator = rows_of(rank.trace.device_events["operator"])[events]
    out = np.unique(operator[operator >= 0]).astype(np.int64)
    while (inside := (parent[out] >= 0) & torchs[parent[out]]).any():
        out = np.unique(np.where(inside, parent[out], out))
    return out


def _without_copies(case: Case, rank: RankCase, copies: Mask, replays: int) -> Replayed:
    graph = case.replayed
    work = case.nodes(rank, device=copies)
    calls = _whole_calls(rank, copies)
    host = case.host_within_operators(rank, calls) | case.nodes(rank, host=rank.launches_of(copies))
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=case.time_of(work),
        evidence=(
            evidence.count("graphs that were replayed", replays),
            evidence.time("copies beside them", case.time_of(work), case.events_of(work), per=case.per),
            evidence.time("host time of these copies", case.time_of(host), per=case.per),
        ),
        removal=Change(
            duration=np.where(work | host, 0, graph.duration), lag=without_gaps(case, work), delay=prompt(case, work)
        ),
        method="replay: graphs without the copies beside them",
        code=code_of(case, work),
        ranks=(rank.rank,),
        uncertainty=_NEEDED,
        confidence=0.8,
        rivals=("host.launch-bound", "inference.host-bound-decode"),
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "launch_calls")),))
