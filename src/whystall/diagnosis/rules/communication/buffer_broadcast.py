"""Buffers that DistributedDataParallel sends to all ranks before each forward pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.collectives import DDP_FORWARD, are, collectives, launched_ns, not_made, spent_ns
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.stretches import LONG_NS
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.replay.graph import Mask, Times
from whystall.trace.columns import matching
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_BROADCAST: Final = re.compile(r"^c10d::broadcast_$")
_KIND: Final = re.compile(r"^broadcast", re.IGNORECASE)
_BY_THE_HOST: Final = re.compile(r"^(gloo|mpi|ucc):broadcast", re.IGNORECASE)
_HOST_COPY: Final = re.compile(r"^Memcpy (HtoD|DtoH)", re.IGNORECASE)
# Calls of torch's broadcast of many tensors (c10d's _broadcast_coalesced): it joins them, sends them, and copies each
# back. Older versions join with cat and part with narrow and view.
_OF_IT: Final = re.compile(
    r"^(c10d::broadcast_|record_param_comms"
    r"|aten::(flatten_dense_tensors|cat|unflatten_dense_tensors|narrow|slice|as_strided|view|view_as|reshape|copy_))$"
)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Broadcasts that forward passes begin with, on any rank: a broadcast that is not made is made by none."""
    nodes = np.zeros(len(case.replayed.start), np.bool_)
    host, device = nodes.copy(), nodes.copy()
    for rank in case.ranks:
        begin, end = _sent(rank)
        if not len(begin):
            continue
        found = collectives(case, rank)
        launched = launched_ns(rank, found)
        nodes |= found.nodes(case, are(found, _KIND) & within(launched, begin, end))
        host |= case.host_within(rank, begin, end)
        device |= case.nodes(rank, device=rank.launched_in(begin, end))
    if host.any():
        yield _not_sent(case, nodes, host, device & ~nodes)


def _sent(rank: RankCase) -> tuple[Times, Times]:
    """The spans in which each forward pass sends buffers: all its calls before the first operator of another kind.

    A long gap between two of these calls ends the span, and so does a copy from or to the host's memory.
    """
    begin, end, thread = rank.intervals(rank.host_named(lambda name: bool(DDP_FORWARD.match(name)), ("annotations",)))
    table = rank.trace.operators
    if not len(begin) or table.is_empty():
        return begin[:0], end[:0]
    outermost = np.flatnonzero(rows_of(table["parent"]) < 0)
    order = outermost[np.argsort(table["ts_ns"].to_numpy()[outermost], kind="stable")]
    at, owner = table["ts_ns"].to_numpy()[order], table["thread"].to_numpy()[order]
    until = at + table["duration_ns"].to_numpy()[order]
    of_it = matching(table["name"], lambda name: bool(_OF_IT.match(name)))[order]
    sends = matching(table["name"], lambda name: bool(_BROADCAST.match(name)))[order]
    other = np.isin(order, _of_the_host(rank))
    sent_begin, sent_end, _ = rank.intervals(
        rank.host_named(lambda name: bool(_BY_THE_HOST.match(name)), ("annotations",))
    )
    out: list[tuple[int, int]] = []
    for first, last, own in zip(begin.tolist(), end.tolist(), thread.tolist(), strict=True):
        rows = np.flatnonzero((at >= first) & (at < last) & (owner == own))
        rows = rows[: _leading(of_it[rows])]
        if sends[rows].any():
            apart = at[rows[1:]] - until[rows[:-1]] >= LONG_NS
            long, (one, other_end) = np.flatnonzero(apart), np.searchsorted(sent_begin, (first, last))
            ours = slice(int(one), int(other_end))
            apart[long] = ~_waits(until[rows[long]], at[rows[long + 1]], sent_begin[ours], sent_end[ours])
            cut = np.flatnonzero(apart | (other[rows[1:]] != other[rows[:-1]]))
            starts, stops = rows[np.append(0, cut + 1)], rows[np.append(cut, len(rows) - 1)]
            sent = ~other[starts]
            out += zip(at[starts[sent]].tolist(), until[stops[sent]].tolist(), strict=True)
    found = np.array(out, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _waits(begin: Times, end: Times, sent_begin: Times, sent_end: Times) -> NDArray[np.bool_]:
    """The stretches in which the thread waits: most of one is a broadcast that a library on the host carries out."""
    first = np.maximum(begin[:, None], sent_begin[None, :])
    last = np.minimum(end[:, None], sent_end[None, :])
    return np.asarray(2 * np.maximum(last - first, 0).sum(axis=1) > end - begin, np.bool_)


def _of_the_host(rank: RankCase) -> NDArray[np.intp]:
    """The outermost operators that copy from or to the host's memory."""
    events = rank.trace.device_events
    copies = matching(events["name"], lambda name: bool(_HOST_COPY.match(name)))
    operator = np.unique(rows_of(events["operator"])[copies])
    parent = rows_of(rank.trace.operators["parent"])
    operator = operator[operator >= 0]
    while (parent[operator] >= 0).any():
        operator = np.where(parent[operator] >= 0, parent[operator], operator)
    return operator.astype(np.intp)


def _leading(flags: NDArray[np.bool_]) -> int:
    """How many of the first are set."""
    return len(flags) if flags.all() else int(np.argmin(flags))


def _not_sent(case: Case, nodes: Mask, host: Mask, device: Mask) -> Replayed:
    ranks = max(len(case.ranks), 1)
    count = count_per_step(case, nodes) / ranks
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=case.time_of(host) // ranks,
        evidence=(
            evidence.count("broadcasts at the start of forward passes", count, case.events_of(nodes), per=case.per),
            evidence.time("spent in them by a rank", spent_ns(case, nodes), per=case.per),
            evidence.time("time of a rank's host in sending them", case.time_of(host) // ranks, per=case.per),
        ),
        removal=not_made(case, nodes, host | device),
        method="replay: forward passes begin without sending buffers",
        ranks=tuple(rank.rank for rank in case.ranks),
        rivals=("communication.small-messages", "communication.exposed", "host.launch-bound"),
    )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators")),))
