"""Collectives that library threads carry out on the host: the calls that enqueue them, and when others saw them end.

The threads of gloo take work that torch's operators (`c10d::`) enqueue. They report an end after they have woken the
waiting thread: on a busy machine that thread runs on before the recorded end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.communication import host_collectives
from whystall.analysis.host_states import HostEvents, HostState
from whystall.replay.graph import Draft, EdgeKind, Times
from whystall.replay.host import SOFT_STATES, HostLane, Spans
from whystall.trace.collectives import ENQUEUES
from whystall.trace.columns import matching
from whystall.trace.model import Trace

# A thread that was woken by the end of a collective runs on at most this long before the end is recorded, and it had
# waited several times as long.
_TOLD_LATE_NS: Final = 3_000_000
_WAITED: Final = 5
# If all cores are taken the report comes later still: it counts as the end if no other collective ended with the wait.
_TOLD_LATEST_NS: Final = 15_000_000
# A thread that is woken for a collective takes at most this long to get a core.
_WOKEN_NS: Final = 2_000_000


def as_others_saw(host: HostEvents, spans: Spans, training: int) -> HostEvents:
    """Host events in which collectives of other threads end when the training thread, which waited, went on."""
    talks = np.flatnonzero((host.state == HostState.COMMUNICATION) & (host.thread != training))
    waits = np.flatnonzero(np.isin(spans.state, SOFT_STATES))
    if not len(talks) or not len(waits):
        return host
    begin, end = spans.begin[waits], spans.end[waits]
    ends, told = host.end.copy(), np.sort(host.end[talks])
    for event in talks.tolist():
        for most in (_TOLD_LATE_NS, _TOLD_LATEST_NS):
            first, last = np.searchsorted(end, (host.end[event] - most, host.end[event]))
            if first == last:
                continue
            longest = first + int(np.argmax(end[first:last] - begin[first:last]))
            late, waited = host.end[event] - end[longest], end[longest] - begin[longest]
            others = np.searchsorted(told, (end[longest] - _TOLD_LATE_NS, host.end[event]))
            if late > _TOLD_LATE_NS and others[0] != others[1]:
                continue
            if waited >= _WAITED * late and end[longest] > host.start[event]:
                ends[event] = end[longest]
                break
    return replace(host, end=ends)


def link_enqueued(draft: Draft, trace: Trace, host: HostEvents, lanes: Mapping[int, HostLane]) -> None:
    """A collective of a library's thread begins after the operator that enqueued it: one for one, in their order."""
    talks = host_collectives(trace)["event"].to_numpy()
    talking = set(host.thread[talks].tolist())
    calls = np.flatnonzero(matching(trace.operators["name"], lambda name: name.startswith(ENQUEUES)))
    calls = calls[~np.isin(host.thread[calls], list(talking))]
    calls = calls[np.argsort(host.start[calls], kind="stable")]
    if not len(calls) or not len(talks):
        return
    call = _enqueued_by(host.start[calls], host.start[talks])
    for thread in talking & lanes.keys():
        for caller in set(host.thread[calls].tolist()) & lanes.keys():
            own = np.flatnonzero((call >= 0) & (host.thread[talks] == thread))
            own = own[host.thread[calls[call[own]]] == caller]
            source = lanes[caller].ending_by(host.end[calls[call[own]]])
            late = np.maximum(host.start[talks[own]] - host.end[calls[call[own]]], 0)
            target = lanes[thread].beginning_at(host.start[talks[own]])
            draft.edges(source, target, EdgeKind.LAUNCH, np.where(late <= _WOKEN_NS, late, 0))


def _enqueued_by(called: Times, begun: Times) -> NDArray[np.int64]:
    """The call that enqueued each collective: by position if there is one call for each, else the last one before."""
    if len(called) == len(begun) and (called <= begun).all():
        return np.arange(len(begun))
    return np.searchsorted(called, begun, side="right").astype(np.int64) - 1
