"""Causes between ranks: exposed, small, slow and awaited collectives; uneven experts and stages; pipeline bubbles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.classify import COMMUNICATION, COMPUTE
from whystall.analysis.communication import communication_records, host_collectives
from whystall.analysis.host_states import HostState
from whystall.diagnosis.case import Case, RankCase
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts
from whystall.replay.graph import Change, EdgeKind, Mask, NodeKind
from whystall.trace.columns import codes, distinct

_POINT_TO_POINT: Final = re.compile(r"^(send|recv|send_recv|message)")
_EXCHANGE: Final = re.compile(r"all_?to_?all|dispatch|combine", re.IGNORECASE)
_SMALL_BYTES: Final = 1 << 20
_BUCKET_BYTES: Final = 25 << 20  # DistributedDataParallel's own bucket_cap_mb
_LONGEST_LATENCY_NS: Final = 500_000
_LEAST_SMALL: Final = 8  # collectives a step: fewer are not worth merging
# What one 400 Gb/s network card moves, in bytes/s. A trace does not say whether its ranks share a machine; what is far
# below even this is slow in any case (reference: causes.md, "busbw < 60 %").
_NETWORK_BYTES_PER_S: Final = 50e9
_LOW: Final = 0.6
_REACHED_OF_LINK: Final = 0.7
_LATE_IN: Final = 0.8  # share of the collectives in which a straggler comes last
_UNEVEN: Final = 0.2
_EVEN: Final = 0.05
_STAGES_APART: Final = 1.05
_MORE_MICRO_BATCHES: Final = 4


@dataclass(frozen=True, slots=True)
class _Collectives:
    """A rank's collectives, on a device or on the host.

    Their nodes in the graph (-1: not drawn), what each is, the bytes it moved (-1: not known), between how many ranks,
    when it began, its group, and (on a device) its row.
    """

    node: NDArray[np.int64]
    kind: list[str]
    size: NDArray[np.int64]
    ranks: NDArray[np.int64]
    start: NDArray[np.int64]
    group: list[str]
    row: NDArray[np.intp] | None

    def nodes(self, case: Case, chosen: NDArray[np.bool_]) -> Mask:
        """The nodes of the chosen ones."""
        out = np.zeros(len(case.replayed.start), np.bool_)
        at = self.node[chosen]
        out[at[at >= 0]] = True
        return out


def _collectives(case: Case, rank: RankCase) -> _Collectives:
    if rank.on_device:
        row = np.flatnonzero(rank.device_work.classified.class_of == COMMUNICATION)
        records = communication_records(rank.trace, row)
        start = rank.trace.device_events["ts_ns"].to_numpy()[row]
        node = _node_of_row(case, rank)[row]
    else:
        row = None
        records = host_collectives(rank.trace)
        start = records["start"].to_numpy()
        node = _node_of_event(case, rank, records["event"].to_numpy())
    return _Collectives(
        node,
        records["collective"].to_list(),
        records["bytes"].fill_null(-1).to_numpy(),
        records["group_size"].fill_null(0).to_numpy().astype(np.int64),
        start,
        records["group"].fill_null("").to_list(),
        row,
    )


def _node_of_event(case: Case, rank: RankCase, events: NDArray[np.int64]) -> NDArray[np.int64]:
    """The node of each host event of a rank, or -1."""
    graph = case.replayed
    nodes = np.flatnonzero((graph.rank == rank.rank) & (graph.kind == NodeKind.HOST) & (graph.event >= 0))
    if not len(nodes):
        return np.full(len(events), -1, np.int64)
    order = nodes[np.argsort(graph.event[nodes], kind="stable")]
    index = np.minimum(np.searchsorted(graph.event[order], events), len(order) - 1)
    return np.where(graph.event[order[index]] == events, order[index], -1)


def _are(found: _Collectives, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    return np.array([bool(pattern.search(kind or "")) for kind in found.kind], np.bool_)


def exposed(case: Case) -> Iterator[Candidate]:
    """Collectives that the step waits for."""
    nodes = np.zeros(len(case.replayed.start), np.bool_)
    movable = nodes.copy()
    hidden_ns = exposed_ns = total_ns = 0
    for rank in case.ranks:
        found = _collectives(case, rank)
        ours = ~_are(found, _POINT_TO_POINT)
        nodes |= found.nodes(case, ours)
        # What experts exchange is needed at once, and the last collective of a step has nothing left to hide behind.
        movable |= found.nodes(case, ours & ~_are(found, _EXCHANGE) & ~_last_of_step(rank, found))
        for device in rank.analysis.devices:
            exposed_ns += device.exposed_communication_ns // max(len(device.steps), 1)
            hidden_ns += device.compute_communication_overlap_ns // max(len(device.steps), 1)
            total_ns += device.communication_ns // max(len(device.steps), 1)
    if not nodes.any():
        return
    everything = case.with_transfers(nodes)
    count = max(len(case.ranks), 1)
    share = hidden_ns / max(total_ns, 1)
    yield Candidate(
        cause="communication.exposed",
        attributed_ns=total_ns // count,
        evidence=(
            facts.time("communication per step and rank", total_ns // count, case.events_of(nodes)),
            facts.time("of it not behind compute", exposed_ns // count),
            facts.share("of it hidden behind compute", share),
        ),
        expected=case.without(case.with_transfers(movable)),
        ceiling=case.without(everything),
        method="replay: nothing waits for collectives but for the last of a step, and for what experts exchange",
        ranks=tuple(rank.rank for rank in case.ranks),
        uncertainty=0.35,
        confidence=0.9 if len(case.ranks) > 1 else 0.75,
        tier=3,
        missing=() if len(case.ranks) > 1 else ("traces of the other ranks",),
        rivals=(
            "communication.small-messages",
            "communication.low-bandwidth",
            "communication.straggler",
            "host.launch-bound",
        ),
        hidden=f"communication takes {total_ns / count / max(case.step_ns, 1):.0%} of the step's time, "
        f"{share:.0%} of it hidden behind compute, and its removal gains next to nothing: leave it",
    )


def _last_of_step(rank: RankCase, found: _Collectives) -> NDArray[np.bool_]:
    """The last collective of each step."""
    step = _step_of(rank, found)
    order = np.lexsort((found.start, step))
    last = np.zeros(len(step), np.bool_)
    if not len(step):
        return last
    last[order[np.append(np.diff(step[order]) != 0, True)]] = True
    return last & (step >= 0)


def _step_of(rank: RankCase, found: _Collectives) -> NDArray[np.int64]:
    """The step of each collective: that which launched it, or in which it began."""
    if found.row is not None:
        return rank.trace.device_events["step"].fill_null(-1).to_numpy()[found.row].astype(np.int64)
    return np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), found.start, side="right").astype(np.int64) - 1


def small_messages(case: Case) -> Iterator[Candidate]:
    """Many collectives that each cost their latency."""
    graph = case.replayed
    transfer_ns = _transfer_ns(case)
    latency = _latency_ns(case)
    if latency is None:
        return
    duration = graph.duration.astype(np.float64)
    bodies = np.zeros(len(duration), np.bool_)
    most = moved = 0
    unsized = False
    for rank in case.ranks:
        found = _collectives(case, rank)
        nodes = found.node
        bound = (nodes >= 0) & ~_are(found, _POINT_TO_POINT) & ~_are(found, _EXCHANGE)
        small = (found.size >= 0) & (found.size < _SMALL_BYTES)
        bound &= small | (transfer_ns[np.maximum(nodes, 0)] < 2 * latency)
        unsized |= bool((found.size[bound] < 0).any())
        steps = max(len(rank.trace.steps), 1)
        count, size = int(np.count_nonzero(bound)) // steps, int(np.maximum(found.size[bound], 0).sum()) // steps
        if count < _LEAST_SMALL:
            continue
        most, moved = max(most, count), max(moved, size)
        left = max(-(-size // _BUCKET_BYTES), 1) / count
        at = nodes[bound]
        bodies[at] = True
        # Latency is paid once a bucket; what goes over the wire stays the same.
        _shorten(case, duration, at, np.maximum(transfer_ns[at] - latency, 0) + latency * left)
        duration = np.where(_launching(case, rank, found, bound), duration * left, duration)
    if not most:
        return
    whole = case.with_transfers(bodies)
    per_step = case.time_of(whole) // max(len(case.ranks), 1)
    yield Candidate(
        cause="communication.small-messages",
        attributed_ns=per_step,
        evidence=(
            facts.count("collectives per step that mostly cost their latency", most, case.events_of(bodies)),
            facts.count("bytes in one, on average", round(moved / most)),
            facts.time("latency of one", latency),
            facts.time("spent in them per step", per_step),
        ),
        expected=Change(duration=duration.astype(np.int64), lag=_without_gaps(case, whole)),
        ceiling=case.without(whole),
        method="replay: as many bytes in buckets of 25 MiB",
        ranks=tuple(rank.rank for rank in case.ranks),
        uncertainty=0.4 if unsized else 0.2,
        confidence=0.6 if unsized else 0.9,
        missing=("sizes of the messages",) if unsized else (),
        rivals=("communication.exposed", "communication.low-bandwidth", "communication.straggler"),
    )


def _latency_ns(case: Case) -> int | None:
    """What the smallest collectives take, in the median: their latency; ``None`` where none is small.

    Without sizes: what the median one takes, if that is short.
    """
    transfer = _transfer_ns(case)
    found: list[int] = []
    unsized: list[int] = []
    for rank in case.ranks:
        own = _collectives(case, rank)
        nodes = own.node
        known = nodes >= 0
        unsized += transfer[nodes[known & (own.size < 0)]].tolist()
        small = (own.size >= 0) & (own.size < _SMALL_BYTES) & known
        if small.any():
            tiny = small & (own.size <= np.quantile(own.size[small], 0.25))
            found += transfer[nodes[tiny]].tolist()
    if found:
        return int(np.median(found))
    usual = int(np.median(unsized)) if unsized else 0
    return usual if 0 < usual <= _LONGEST_LATENCY_NS else None


def _without_gaps(case: Case, nodes: Mask) -> NDArray[np.int64]:
    graph = case.replayed
    near = (graph.edge_kind == EdgeKind.STREAM) & nodes[graph.target]
    return np.where(near, np.minimum(graph.lag, 0), graph.lag)


def _launching(case: Case, rank: RankCase, found: _Collectives, chosen: NDArray[np.bool_]) -> Mask:
    """The host nodes of the operators that launched collectives."""
    if found.row is None:
        return np.zeros(len(case.replayed.start), np.bool_)
    operator = rank.trace.device_events["operator"].fill_null(-1).to_numpy()[found.row[chosen]]
    rows = np.unique(operator[operator >= 0])
    table = rank.trace.operators
    begin = table["ts_ns"].to_numpy()[rows]
    return case.host_within(rank, begin, begin + table["duration_ns"].to_numpy()[rows])


def low_bandwidth(case: Case) -> Iterator[Candidate]:
    """Large collectives that move far less than any link should."""
    graph = case.replayed
    shortest = _transfer_ns(case)
    latency = _latency_ns(case) or 0
    expected = graph.duration.astype(np.float64)
    least, best = expected.copy(), expected.copy()
    chosen = np.zeros(len(expected), np.bool_)
    rates: list[float] = []
    for rank in case.ranks:
        found = _collectives(case, rank)
        peak = rank.device_work.peak if rank.on_device else None
        link = peak.link_gb_per_s * 1e9 if peak is not None and peak.link_gb_per_s else _NETWORK_BYTES_PER_S
        nodes = found.node
        large = (found.size >= _SMALL_BYTES) & (found.ranks > 1) & (nodes >= 0) & ~_are(found, _POINT_TO_POINT)
        rows = np.flatnonzero(large)
        wire = found.size[rows] * _bus_factor(found, rows)
        rate = wire / np.maximum(shortest[nodes[rows]] - latency, 1) * 1e9
        slow = rate < _LOW * min(_NETWORK_BYTES_PER_S, link)
        at = nodes[rows[slow]]
        rates += rate[slow].tolist()
        chosen[at] = True
        for out, target in (
            (expected, _REACHED_OF_LINK * link),
            (least, _REACHED_OF_LINK * min(_NETWORK_BYTES_PER_S, link)),
            (best, link),
        ):
            _shorten(case, out, at, latency + wire[slow] / target * 1e9)
    if not chosen.any():
        return
    whole = case.with_transfers(chosen)
    per_step = case.time_of(whole) // max(len(case.ranks), 1)
    yield Candidate(
        cause="communication.low-bandwidth",
        attributed_ns=per_step,
        evidence=(
            facts.bandwidth("bus bandwidth of large collectives, in the median", float(np.median(rates))),
            facts.time("spent in them per step", per_step, case.events_of(chosen)),
        ),
        expected=Change(duration=expected.astype(np.int64)),
        least=Change(duration=least.astype(np.int64)),
        ceiling=Change(duration=best.astype(np.int64)),
        method="replay: the same bytes at 70 % of the link's bandwidth (at the least: of a 400 Gb/s network)",
        ranks=tuple(rank.rank for rank in case.ranks),
        confidence=0.85 if len(case.ranks) > 1 else 0.6,
        missing=() if len(case.ranks) > 1 else ("traces of the other ranks",),
        rivals=("communication.exposed", "communication.straggler", "communication.small-messages"),
    )


def _bus_factor(found: _Collectives, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """Bytes on the wire per byte of the message (nccl-tests, doc/PERFORMANCE.md)."""
    size = np.maximum(found.ranks[rows], 1).astype(np.float64)
    reduces = np.array([bool(re.search(r"all_?reduce", found.kind[row], re.IGNORECASE)) for row in rows], np.bool_)
    return np.where(reduces, 2.0, 1.0) * (size - 1) / size


def _node_of_row(case: Case, rank: RankCase) -> NDArray[np.int64]:
    """Per device event of a rank its node, or -1."""
    graph = case.replayed
    out = np.full(len(rank.trace.device_events), -1, np.int64)
    nodes = np.flatnonzero((graph.rank == rank.rank) & (graph.kind == NodeKind.DEVICE))
    out[graph.event[nodes]] = nodes
    return out


def _transfer_of(case: Case) -> NDArray[np.int64]:
    """Per node the transfer it meets others in, or -1."""
    graph = case.replayed
    out = np.full(len(graph.start), -1, np.int64)
    met = (graph.edge_kind == EdgeKind.RENDEZVOUS) & (graph.rank[graph.target] == -1)
    out[graph.source[met].astype(np.int64)] = graph.target[met]
    return out


def _transfer_ns(case: Case) -> NDArray[np.int64]:
    """Per collective's node how long the transfer took, without waiting for others where these were recorded."""
    transfer = _transfer_of(case)
    duration = case.replayed.duration
    return np.where(transfer >= 0, duration[np.maximum(transfer, 0)], duration)


def _shorten(
    case: Case, duration: NDArray[np.float64], nodes: NDArray[np.int64], target_ns: NDArray[np.float64]
) -> None:
    """Gives collectives (or their transfers) a new length, where that is shorter."""
    transfer = _transfer_of(case)[nodes]
    at = np.where(transfer >= 0, transfer, nodes)
    duration[at] = np.minimum(duration[at], target_ns)


def _kernel_times(case: Case, step_only: bool = True) -> pl.DataFrame:
    """Compute kernels of all ranks: rank, row, name, how many of the name came before, and how long it took."""
    parts = []
    for rank in case.ranks:
        events = rank.trace.device_events
        computes = rank.device_work.classified.class_of == COMPUTE
        if step_only:
            computes = computes & events["step"].is_not_null().to_numpy()
        row = np.flatnonzero(computes)
        parts.append(
            pl.DataFrame(
                {
                    "rank": np.full(len(row), rank.rank, np.int64),
                    "row": row,
                    "name": pl.Series(distinct(events["name"]), dtype=pl.String).gather(codes(events["name"])[row]),
                    "ns": events["duration_ns"].to_numpy()[row],
                }
            )
        )
    table = pl.concat(parts)
    return table.with_columns(nth=pl.int_range(pl.len()).over("rank", "name"))


def straggler(case: Case) -> Iterator[Candidate]:
    """One rank that the others wait for in nearly every collective."""
    late = _last_to_come(case)
    if late is None or _has_stages(case):
        return
    rank, share, wait_ns, instances = late
    uneven = _uneven_kernels(case)
    if uneven is not None:
        return
    graph = case.replayed
    duration, device_ratio = _as_fast_as_peers(case, rank)
    host = (graph.kind == NodeKind.HOST) & (graph.rank == rank)
    ratio = _host_ratio(case, rank) if device_ratio is not None else _prompt_ratio(case, rank, wait_ns)
    duration = np.where(host, np.floor(duration * ratio).astype(np.int64), duration)
    yield Candidate(
        cause="communication.straggler",
        attributed_ns=wait_ns,
        evidence=(
            facts.text("the rank that others wait for", f"rank {rank}"),
            facts.share("of the collectives it comes last in", share),
            facts.time("the others wait for it per step", wait_ns),
            facts.count("collectives compared", instances),
            *((facts.share("its kernels take longer than its peers' by", device_ratio - 1),) if device_ratio else ()),
            facts.share("its host takes longer than its peers' by", 1 / max(ratio, 1e-9) - 1),
        ),
        expected=Change(duration=duration),
        method="replay: that rank's kernels and host as fast as its peers'",
        ranks=(rank,),
        uncertainty=0.15,
        confidence=0.95,
        rivals=("communication.exposed", "communication.low-bandwidth", "device.throttled"),
    )


def _as_fast_as_peers(case: Case, rank: int) -> tuple[NDArray[np.int64], float | None]:
    """The durations with a rank's kernels as fast as its peers', and how much slower they are; ``None`` without any."""
    graph = case.replayed
    own = next(one for one in case.ranks if one.rank == rank)
    if not own.on_device:
        return graph.duration, None
    table = _kernel_times(case)
    peers = table.filter(pl.col("rank") != rank).group_by("name", "nth").agg(pl.col("ns").median().alias("usual"))
    mine = table.filter(pl.col("rank") == rank).join(peers, on=["name", "nth"], how="left", maintain_order="left")
    target = own.trace.device_events["duration_ns"].to_numpy().astype(np.float64)
    usual = mine.select(pl.coalesce("usual", "ns").alias("usual"))["usual"].to_numpy()
    target[mine["row"].to_numpy()] = usual
    wanted = case.device_values(own, target, np.inf)
    duration = np.minimum(graph.duration, np.where(np.isfinite(wanted), wanted, graph.duration)).astype(np.int64)
    return duration, float(mine["ns"].sum()) / max(float(np.sum(usual)), 1.0)


def _prompt_ratio(case: Case, rank: int, wait_ns: int) -> float:
    """How much shorter a rank's host work must be for the others not to wait for it."""
    graph = case.replayed
    host = (graph.kind == NodeKind.HOST) & (graph.state != HostState.COMMUNICATION) & (graph.rank == rank)
    return max(1 - wait_ns / max(case.time_of(host), 1), 0.0)


def _host_ratio(case: Case, rank: int) -> float:
    """How much shorter a rank's host work would be if it were as fast as its peers' (1: it is)."""
    graph = case.replayed
    host = (graph.kind == NodeKind.HOST) & (graph.state != HostState.COMMUNICATION)
    sums = {one.rank: int(graph.duration[host & (graph.rank == one.rank)].sum()) for one in case.ranks}
    usual = float(np.median([value for number, value in sums.items() if number != rank]))
    return min(usual / max(sums[rank], 1), 1.0)


def _last_to_come(case: Case) -> tuple[int, float, int, int] | None:
    """The rank that comes last in most collectives: its share of them, what the others wait per step, how many."""
    graph = case.replayed
    transfer = _transfer_of(case)
    nodes = np.flatnonzero((transfer >= 0) & case.in_window(np.ones(len(transfer), np.bool_)))
    if not len(nodes):
        return None
    table = pl.DataFrame({"transfer": transfer[nodes], "rank": graph.rank[nodes], "start": graph.start[nodes]})
    waits = (
        table.group_by("transfer")
        .agg(
            pl.col("rank").sort_by("start").last().alias("last"),
            (pl.col("start").max() - pl.col("start").median()).alias("wait"),
            pl.len().alias("ranks"),
        )
        .filter(pl.col("ranks") > 1)
    )
    long = waits.filter(pl.col("wait") > waits["wait"].sum() / max(len(waits), 1) / 10)
    if long.is_empty():
        return None
    counts = (
        long.group_by("last")
        .agg(pl.len().alias("count"), pl.col("wait").sum())
        .sort(["count", "last"], descending=[True, False])
    )
    share = counts["count"][0] / len(long)
    if share < _LATE_IN:
        return None
    return int(counts["last"][0]), float(share), int(counts["wait"][0]) // max(case.steps, 1), len(waits)


def _has_stages(case: Case) -> bool:
    """Whether ranks send each other messages, as stages of a pipeline do."""
    for rank in case.ranks:
        found = _collectives(case, rank)
        if len(found.node) and np.count_nonzero(_are(found, _POINT_TO_POINT)) > len(found.node) // 4:
            return any(kind in ("send", "recv") for kind in found.kind)
    return False


def _uneven_kernels(case: Case) -> pl.DataFrame | None:
    """Kernels that take very different time from rank to rank while the others do not, with their mean over ranks."""
    table = _kernel_times(case)
    exchanges = any(_are(_collectives(case, rank), _EXCHANGE).any() for rank in case.ranks)
    if not exchanges:
        return None
    instances = table.group_by("name", "nth").agg(
        pl.col("ns").mean().alias("mean"), pl.col("ns").std().alias("apart"), pl.len().alias("ranks")
    )
    instances = instances.filter(pl.col("ranks") == len(case.ranks))
    names = instances.group_by("name").agg(
        (pl.col("apart") / pl.col("mean")).median().alias("apart"), pl.col("mean").sum().alias("weight")
    )
    uneven = names.filter(pl.col("apart") > _UNEVEN)
    even = names.filter(pl.col("apart") <= _EVEN)
    if uneven.is_empty() or even["weight"].sum() < uneven["weight"].sum() / 2:
        return None
    return table.join(instances.select("name", "nth", "mean"), on=["name", "nth"]).join(
        uneven.select("name"), on="name", how="semi"
    )


def expert_imbalance(case: Case) -> Iterator[Candidate]:
    """Experts on one rank that get more tokens than those on the others."""
    uneven = _uneven_kernels(case)
    if uneven is None:
        return
    graph = case.replayed
    wanted = graph.duration.astype(np.float64)
    for rank in case.ranks:
        own = uneven.filter(pl.col("rank") == rank.rank)
        node = _node_of_row(case, rank)[own["row"].to_numpy()]
        wanted[node[node >= 0]] = own["mean"].to_numpy()[node >= 0]
    sums = uneven.group_by("rank").agg(pl.col("ns").sum()).sort("ns", descending=True)
    busiest, most, mean = int(sums["rank"][0]), int(sums["ns"][0]), float(sums["ns"].mean())  # type: ignore[arg-type]
    yield Candidate(
        cause="communication.expert-imbalance",
        attributed_ns=int(most - mean) // max(len(case.ranks[0].trace.steps), 1),
        evidence=(
            facts.text("the rank with the most work", f"rank {busiest}"),
            facts.share("its share above the mean", most / max(mean, 1.0) - 1),
            facts.text("kernels that differ from rank to rank", ", ".join(sorted(set(uneven["name"].to_list())))[:200]),
        ),
        expected=Change(duration=wanted.astype(np.int64)),
        method="replay: the uneven kernels at their mean over the ranks",
        ranks=(busiest,),
        uncertainty=0.15,
        rivals=("communication.straggler", "communication.exposed"),
    )


def pipeline(case: Case) -> Iterator[Candidate]:
    """Stages that wait for each other: an uneven split, or too few micro-batches to fill the pipeline."""
    if not _has_stages(case):
        return
    graph = case.replayed
    computes = {
        rank.rank: case.nodes(rank, device=rank.device_work.classified.class_of == COMPUTE) for rank in case.ranks
    }
    per_step = {rank: case.time_of(nodes) for rank, nodes in computes.items()}
    mean = float(np.mean(list(per_step.values())))
    slowest = max(per_step, key=lambda rank: (per_step[rank], -rank))
    apart = per_step[slowest] / max(mean, 1.0)
    ranks = tuple(rank.rank for rank in case.ranks)
    if apart > _STAGES_APART:
        duration = graph.duration.astype(np.float64)
        for rank, nodes in computes.items():
            duration[nodes] *= mean / max(per_step[rank], 1)
        yield Candidate(
            cause="pipeline.stage-imbalance",
            attributed_ns=per_step[slowest] - int(mean),
            evidence=(
                facts.text("the slowest stage", f"rank {slowest}"),
                facts.share("its compute above the mean of the stages", apart - 1),
            ),
            expected=Change(duration=duration.astype(np.int64)),
            method="replay: the same compute in every stage",
            ranks=(slowest,),
            uncertainty=0.15,
            rivals=("pipeline.bubble", "communication.straggler"),
        )
    micro = _micro_batches(case)
    if micro:
        fill = (len(case.ranks) - 1) / micro
        idle = case.step_ns - int(mean)
        better = 1 - (1 + fill / _MORE_MICRO_BATCHES) / (1 + fill)
        yield Candidate(
            cause="pipeline.bubble",
            attributed_ns=idle,
            evidence=(
                facts.count("stages", len(case.ranks)),
                facts.count("micro-batches per step", micro),
                facts.share("bubble by the schedule, (p - 1) / (m + p - 1)", fill / (1 + fill)),
                facts.share("idle compute per stage, as measured", idle / max(case.step_ns, 1)),
            ),
            saved=(better * 0.5, better, fill / (1 + fill)),
            method=f"the schedule's formula with {_MORE_MICRO_BATCHES} times as many micro-batches",
            ranks=ranks,
            tier=1,
            rivals=("pipeline.stage-imbalance", "communication.exposed"),
        )


def _micro_batches(case: Case) -> int:
    """How many messages one stage sends the next in a step."""
    counts = []
    for rank in case.ranks:
        found = _collectives(case, rank)
        sends = np.array([kind == "send" for kind in found.kind], np.bool_)
        if sends.any():
            step = _step_of(rank, found)[sends]
            groups = [group for group, sent in zip(found.group, sends.tolist(), strict=True) if sent]
            per = (
                pl.DataFrame({"step": step, "group": groups})
                .filter(pl.col("step") >= 0)
                .group_by("step", "group")
                .len()
            )
            counts += per["len"].to_list()
    return int(np.median(counts)) if counts else 0


RULES: Final = (
    Rule("communication.small-messages", ("trace",), small_messages),
    Rule("communication.low-bandwidth", ("trace", "device"), low_bandwidth),
    Rule("communication.straggler", ("trace", "several_ranks"), straggler),
    Rule("communication.expert-imbalance", ("trace", "device", "several_ranks"), expert_imbalance),
    Rule("pipeline.stage-imbalance", ("trace", "device", "several_ranks"), pipeline),
    Rule("communication.exposed", ("trace",), exposed),
)
