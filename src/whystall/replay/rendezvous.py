"""Collectives of several ranks: none ends before the last rank has come, and all end together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.replay.graph import LATENCY_NS, Draft, EdgeKind, NodeKind, Times


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's collectives: ``number`` is the meeting of each, times are on the clock of all."""

    rank: int
    number: NDArray[np.int64]
    body: NDArray[np.int64]
    exit: NDArray[np.int64]
    start: Times
    end: Times


def meet(draft: Draft, members: Sequence[Member]) -> int:
    """Joins the collectives that all ranks of the run recorded; returns how many were joined.

    A rank's own part ends at its arrival; the transfer, from the last arrival to the first end, is a node of its own
    that every rank waits for. The time that a rank then still takes to leave is another node, of that rank.
    """
    tables = [
        pl.DataFrame(
            {
                "number": member.number,
                "body": member.body,
                "exit": member.exit,
                "start": member.start,
                "end": member.end,
                "rank": np.full(len(member.number), member.rank, np.int64),
            }
        )
        for member in members
    ]
    everything = pl.concat(tables)
    groups = everything.group_by("number", maintain_order=True).agg(
        pl.len().alias("ranks"), pl.col("start").max().alias("arrived"), pl.col("end").min().alias("ended")
    )
    shared = groups.filter(pl.col("ranks") > 1).with_columns(ended=pl.max_horizontal("ended", "arrived"))
    if shared.is_empty():
        return 0
    transfer = draft.nodes(
        shared["arrived"].to_numpy(),
        shared["ended"].to_numpy(),
        kind=NodeKind.JOINT,
        lane=draft.lane("collectives"),
        rank=-1,
    )
    parts = everything.join(
        shared.select("number", "ended").with_columns(transfer=pl.Series(transfer)), on="number", how="inner"
    )
    body, leaves, node = (parts[name].to_numpy() for name in ("body", "exit", "transfer"))
    draft.shorten(body)
    draft.edges(body, node, EdgeKind.RENDEZVOUS)
    draft.edges(node, leaves, EdgeKind.RENDEZVOUS)
    _leave_later(draft, parts)
    # An event that begins at the very instant at which a transfer ended may have waited for it.
    lasting = (shared["ended"] > shared["arrived"]).to_numpy()
    draft.first(leaves[np.isin(node, transfer[lasting])])
    return len(shared)


def _leave_later(draft: Draft, parts: pl.DataFrame) -> None:
    """Draws a rank's part of a collective after the first rank has left it: it still receives."""
    late = parts.filter(pl.col("end") - pl.col("ended") > LATENCY_NS)
    for (rank,), own in late.group_by("rank", maintain_order=True):
        rest = draft.nodes(
            own["ended"].to_numpy(),
            own["end"].to_numpy(),
            kind=NodeKind.JOINT,
            lane=draft.lane(f"rank {rank} leaving"),
            rank=int(rank),
        )
        draft.edges(own["transfer"].to_numpy(), rest, EdgeKind.RENDEZVOUS)
        draft.edges(rest, own["exit"].to_numpy(), EdgeKind.RENDEZVOUS)
