"""Causes in how ranks differ: a straggler, uneven experts, stages that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from math import comb
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.host_states import HostState
from whystall.analysis.kernel_classes import COMPUTE
from whystall.diagnosis.case import Case
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts
from whystall.diagnosis.rules.collectives import (
    EXCHANGE,
    are,
    collectives,
    has_stages,
    lacks_a_stage,
    node_of_row,
    step_of,
)
from whystall.replay.graph import Change, NodeKind
from whystall.trace.columns import codes, distinct

_LATE_IN: Final = 0.8  # share of the collectives in which a straggler comes last
_UNEVEN: Final = 0.2
_EVEN: Final = 0.05
_STAGES_APART: Final = 1.05
_MORE_MICRO_BATCHES: Final = 4


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
    if late is None or has_stages(case):
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
    transfer = case.transfer_of
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
    if share < _LATE_IN or _by_chance(int(counts["count"][0]), len(long), len(case.ranks)) >= _LEAST_CHANCE:
        return None
    return int(counts["last"][0]), float(share), int(counts["wait"][0]) // max(case.steps, 1), len(waits)


# (reference: causes.md, "permutation p<0.01")
_LEAST_CHANCE: Final = 0.01


def _by_chance(count: int, meetings: int, ranks: int) -> float:
    """How likely some rank comes last at least so often when each is as likely to be."""
    last = 1 / ranks
    tail = sum(
        comb(meetings, times) * last**times * (1 - last) ** (meetings - times) for times in range(count, meetings + 1)
    )
    return min(ranks * tail, 1.0)


def _uneven_kernels(case: Case) -> pl.DataFrame | None:
    """Kernels that take very different time from rank to rank while the others do not, with their mean over ranks."""
    table = _kernel_times(case)
    exchanges = any(are(collectives(case, rank), EXCHANGE).any() for rank in case.ranks)
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
        node = node_of_row(case, rank)[own["row"].to_numpy()]
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
    if not has_stages(case) or lacks_a_stage(case):
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
        found = collectives(case, rank)
        sends = np.array([kind == "send" for kind in found.kind], np.bool_)
        if sends.any():
            step = step_of(rank, found)[sends]
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
    Rule("communication.straggler", ("trace", "several_ranks"), straggler),
    Rule("communication.expert-imbalance", ("trace", "device", "several_ranks"), expert_imbalance),
    Rule("pipeline.stage-imbalance", ("trace", "device", "several_ranks"), pipeline),
)
