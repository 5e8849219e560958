"""A rank's collectives as rules see them: their nodes in the graph, their bytes, and the ranks they met."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.communication import communication_records, host_collectives
from whystall.analysis.host_states import HostState
from whystall.analysis.kernel_classes import COMMUNICATION
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.kernels import close_up
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Change, EdgeKind, Mask, NodeKind
from whystall.trace.columns import matching
from whystall.trace.link import rows_of

POINT_TO_POINT: Final = re.compile(r"^(send|recv|send_recv|message)")
# Operators that wrap a collective: record_param_comms lies in c10d's operator, and that in a functional one.
_LIBRARY: Final = re.compile(r"^(c10d|_c10d_functional|c10d_functional|torch_dist)::|^record_param_comms$")
_DEEPEST: Final = 4
DDP_FORWARD: Final = re.compile(r"^DistributedDataParallel\.forward$")
"""DistributedDataParallel's mark on its forward passes."""
# Stages that send one after the other: the last one lags by at least two thirds of the time between messages.
_TOGETHER: Final = 0.5
_FEWEST_IN_RING: Final = 3
EXCHANGE: Final = re.compile(r"all_?to_?all|dispatch|combine", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Collectives:
    """A rank's collectives, on a device or on the host.

    Their nodes in the graph (-1: not drawn), the kind of each, its bytes (-1: not known), its number of ranks, its
    begin, its group, its data type ("" where it is not known), and (on a device) its row.
    """

    node: NDArray[np.int64]
    kind: list[str]
    size: NDArray[np.int64]
    ranks: NDArray[np.int64]
    start: NDArray[np.int64]
    group: list[str]
    dtype: list[str]
    row: NDArray[np.intp] | None

    def nodes(self, case: Case, chosen: NDArray[np.bool_]) -> Mask:
        """The nodes of the chosen ones."""
        out = np.zeros(len(case.replayed.start), np.bool_)
        at = self.node[chosen]
        out[at[at >= 0]] = True
        return out


def collectives(case: Case, rank: RankCase) -> Collectives:
    """The collectives of a rank: those of its devices, or on a job without any those of a library on the host."""
    key = ("collectives", rank.rank)
    if key not in case.kept:
        case.kept[key] = _collectives(case, rank)
    found: Collectives = case.kept[key]
    return found


def _collectives(case: Case, rank: RankCase) -> Collectives:
    if rank.on_device:
        row = np.flatnonzero(rank.workings.classified.class_of == COMMUNICATION)
        records = communication_records(rank.trace, row)
        start = rank.trace.device_events["ts_ns"].to_numpy()[row]
        node = node_of_row(case, rank)[row]
    else:
        row = None
        records = host_collectives(rank.trace)
        start = records["start"].to_numpy()
        node = node_of_event(case, rank, records["event"].to_numpy())
    return Collectives(
        node,
        records["collective"].to_list(),
        records["bytes"].fill_null(-1).to_numpy(),
        records["group_size"].fill_null(0).to_numpy().astype(np.int64),
        start,
        records["group"].fill_null("").to_list(),
        records["dtype"].fill_null("").to_list(),
        row,
    )


def node_of_event(case: Case, rank: RankCase, events: NDArray[np.int64]) -> NDArray[np.int64]:
    """The node of each host event of a rank, or -1."""
    graph = case.replayed
    nodes = case.rows(rank, NodeKind.HOST)
    nodes = nodes[graph.event[nodes] >= 0]
    if not len(nodes):
        return np.full(len(events), -1, np.int64)
    order = nodes[np.argsort(graph.event[nodes], kind="stable")]
    index = np.minimum(np.searchsorted(graph.event[order], events), len(order) - 1)
    return np.where(graph.event[order[index]] == events, order[index], -1)


def are(found: Collectives, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Which of the collectives are of a kind."""
    known = {kind: bool(pattern.search(kind or "")) for kind in set(found.kind)}
    return np.array([known[kind] for kind in found.kind], np.bool_)


def step_of(rank: RankCase, found: Collectives) -> NDArray[np.int64]:
    """The step of each collective: the one that launched it, or in which it began."""
    if found.row is not None:
        return rank.trace.device_events["step"].fill_null(-1).to_numpy()[found.row].astype(np.int64)
    return np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), found.start, side="right").astype(np.int64) - 1


def node_of_row(case: Case, rank: RankCase) -> NDArray[np.int64]:
    """Per device event of a rank its node, or -1."""
    graph = case.replayed
    out = np.full(len(rank.trace.device_events), -1, np.int64)
    nodes = case.rows(rank, NodeKind.DEVICE)
    out[graph.event[nodes]] = nodes
    return out


def met_by_all(case: Case, rank: RankCase, found: Collectives) -> NDArray[np.bool_]:
    """Marks the collectives of a rank whose ranks were all recorded, as far as their groups' sizes are known.

    Otherwise they may wait for an unrecorded rank, and their duration is no evidence about the link. A rank without a
    trace counts if its summary shows that no rank waited for it.
    """
    graph = case.replayed
    meeting = (graph.edge_kind == EdgeKind.RENDEZVOUS) & (graph.rank[graph.target] == -1)
    arrived = np.bincount(graph.target[meeting].astype(np.int64), minlength=len(graph.start))
    transfer = np.where(found.node >= 0, case.transfer_of[np.maximum(found.node, 0)], -1)
    present = np.where(transfer >= 0, arrived[np.maximum(transfer, 0)], 1)
    wanted = np.where(are(found, POINT_TO_POINT), np.minimum(found.ranks, 2), found.ranks)
    attended = case.summarised.attended.get(rank.rank)
    heard_of = np.isin(found.start, attended) if attended is not None else np.zeros(len(found.start), np.bool_)
    return np.asarray((present >= wanted) | heard_of, np.bool_)


def has_stages(case: Case) -> bool:
    """Whether ranks send each other messages, as stages of a pipeline do; those of a ring are no stages."""
    for rank in case.ranks:
        found = collectives(case, rank)
        if len(found.node) and np.count_nonzero(are(found, POINT_TO_POINT)) > len(found.node) // 4:
            return any(kind in ("send", "recv") for kind in found.kind) and not in_rings(case)
    return False


def in_rings(case: Case) -> bool:
    """Whether messages go around in rings of three ranks and more, as ring attention passes keys on.

    All go one way, and ranks send together. Stages of a pipeline that trains send back, too: those in the middle to two
    others. In a pipeline that generates the last stage sends to the first, but one stage after the other. For two ranks
    both look alike.
    """
    key = ("in_rings", -1)
    if key not in case.kept:
        receivers = _receivers(case)
        # In a group of more than two ranks the receiver is unknown.
        case.kept[key] = (_are_rings(receivers) if receivers else True) and _send_together(case)
    found: bool = case.kept[key]
    return found


def _send_together(case: Case) -> bool:
    """Whether three ranks and more send equally often, and begin each step's first message at nearly the same time.

    The limit is a share of the time between two messages of a rank. Later ones drift apart behind a slow rank.
    """
    sends, steps = [], []
    for rank in case.ranks:
        found = collectives(case, rank)
        sending = np.array([kind == "send" for kind in found.kind], np.bool_) & (found.node >= 0)
        if sending.any():
            start = case.replayed.start[found.node[sending]]
            order = np.argsort(start, kind="stable")
            sends.append(start[order])
            steps.append(step_of(rank, found)[sending][order])
    if len(sends) < _FEWEST_IN_RING or len(set(map(len, sends))) > 1 or len(sends[0]) == 1:
        return False
    starts = np.array(sends)
    between = (starts[:, -1] - starts[:, 0]).mean() / (starts.shape[1] - 1)
    first = np.flatnonzero(np.diff(steps[0], prepend=-2))
    return bool(np.median(np.ptp(starts[:, first], axis=0)) < _TOGETHER * between)


def _receivers(case: Case) -> dict[int, set[int]]:
    """The ranks that each rank sends messages to, for messages with both ends recorded."""
    ends: dict[str, dict[int, int]] = {"send": {}, "recv": {}}
    for rank in case.ranks:
        found = collectives(case, rank)
        for node, kind in zip(found.node.tolist(), found.kind, strict=True):
            if kind in ends and node >= 0 and case.transfer_of[node] >= 0:
                ends[kind][int(case.transfer_of[node])] = rank.rank
    out: dict[int, set[int]] = {}
    for transfer, sender in ends["send"].items():
        if transfer in ends["recv"]:
            out.setdefault(sender, set()).add(ends["recv"][transfer])
    return out


def _are_rings(receivers: dict[int, set[int]]) -> bool:
    """Whether each has one receiver, each is one, and none gets its message back at once.

    >>> _are_rings({0: {1}, 1: {2}, 2: {0}}), _are_rings({0: {1}, 1: {0, 2}, 2: {1}}), _are_rings({0: {1}, 1: {0}})
    (True, False, False)
    """
    after = {sender: next(iter(own)) for sender, own in receivers.items() if len(own) == 1}
    closed = bool(after) and len(after) == len(receivers) and set(after.values()) == set(after)
    return closed and all(after[after[rank]] != rank for rank in after)


def lacks_a_stage(case: Case) -> bool:
    """Whether there are stages, and some messages come from or go to one that was not recorded."""
    return has_stages(case) and any(
        bool((are(found, POINT_TO_POINT) & (found.node >= 0) & ~met_by_all(case, rank, found)).any())
        for rank, found in ((rank, collectives(case, rank)) for rank in case.ranks)
    )


def launched_ns(rank: RankCase, found: Collectives) -> NDArray[np.int64]:
    """When the host enqueued each of a rank's collectives: the launch of one on a device, the beginning of others."""
    return rank.launch_time[found.row] if found.row is not None else found.start


def ended_ns(case: Case, found: Collectives, at: NDArray[np.intp]) -> NDArray[np.int64]:
    """When some of a rank's collectives, which are drawn, ended: their own time, and the transfer that all wait for."""
    node, duration = found.node[at], case.replayed.duration
    transfer = case.transfer_of[node]
    return found.start[at] + duration[node] + np.where(transfer >= 0, duration[np.maximum(transfer, 0)], 0)


def launching(case: Case, rank: RankCase, found: Collectives, chosen: NDArray[np.bool_]) -> Mask:
    """The host nodes of the operators that launched collectives."""
    if found.row is None:
        return case.host_state(rank, HostState.COMMUNICATION)
    operator = rows_of(rank.trace.device_events["operator"])[found.row[chosen]]
    return case.host_within_operators(rank, _whole_calls(rank, np.unique(operator[operator >= 0])))


def _whole_calls(rank: RankCase, operators: NDArray[np.int32]) -> NDArray[np.int64]:
    """The outermost calls of the distributed library around some operators, or these themselves."""
    table = rank.trace.operators
    parent = rows_of(table["parent"])
    library = matching(table["name"], lambda name: bool(_LIBRARY.match(name)))
    out = np.unique(operators).astype(np.int64)
    for _ in range(_DEEPEST):
        above = parent[out]
        inside = (above >= 0) & library[np.maximum(above, 0)]
        if not inside.any():
            break
        out = np.where(inside, above, out)
    return np.unique(out)


def without_gaps(case: Case, nodes: Mask) -> NDArray[np.int64]:
    """The lags of edges, without those that follow nodes of a stream upon each other."""
    return close_up(case, nodes, 0)


def not_made(case: Case, nodes: Mask, other: Mask) -> Change:
    """The change that removes some collectives, on all ranks, and the time of other nodes."""
    graph = case.replayed
    whole = case.with_transfers(nodes)
    meets = (graph.edge_kind == EdgeKind.RENDEZVOUS) & (whole[graph.source.astype(np.int64)] | whole[graph.target])
    return Change(
        duration=np.where(whole | other, 0, graph.duration), lag=without_gaps(case, whole | other), removed_edges=meets
    )


def spent_ns(case: Case, nodes: Mask) -> int:
    """The time of collectives per step and rank: waiting for others, and the transfer that all of them share."""
    at = np.flatnonzero(case.in_window(nodes))
    transfer = case.transfer_of[at]
    duration = case.replayed.duration
    total = duration[at].sum() + duration[transfer[transfer >= 0]].sum()
    return int(total) // max(case.steps * len(case.ranks), 1)


def waited_and_moved_ns(case: Case, nodes: Mask) -> tuple[int, int]:
    """How long collectives of all ranks waited for the last to come, and how long the rest of their time is.

    If the other ranks were not recorded, the rest is the whole time.
    """
    at = np.flatnonzero(case.in_window(nodes))
    transfer = case.transfer_of[at]
    meets = transfer >= 0
    graph = case.replayed
    waited = np.maximum(graph.start[transfer[meets]] - graph.start[at[meets]], 0).sum()
    return int(waited), int(graph.duration[at].sum() + graph.duration[transfer[meets]].sum())


def transfer_ns(case: Case) -> NDArray[np.int64]:
    """Per collective's node how long the transfer took, without waiting for others where these were recorded."""
    transfer = case.transfer_of
    duration = case.replayed.duration
    return np.where(transfer >= 0, duration[np.maximum(transfer, 0)], duration)
