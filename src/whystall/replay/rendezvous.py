"""Collectives of several ranks: none ends before the last rank has come, and all end together.

That all ranks see a collective end at the same time also tells how far their clocks are apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.replay.graph import Draft, EdgeKind, NodeKind, Times


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's collectives: ``keys`` say which instance each is, times are on the rank's own clock."""

    rank: int
    keys: pl.DataFrame
    body: NDArray[np.int64]
    exit: NDArray[np.int64]
    start: Times
    end: Times


def instance_keys(records: pl.DataFrame, start: Times, rank: int) -> pl.DataFrame:
    """What the same collective has in common on all its ranks: kind, group, size, and how many like it came before.

    A message between the two ranks of a group is one thing, though one of them sends it and the other receives it.
    """
    kinds = [_kind(kind, ranks, rank) for kind, ranks in records.select("collective", "group_ranks").iter_rows()]
    table = records.select(
        pl.Series("collective", kinds, pl.String),
        pl.col("group").fill_null(""),
        pl.col("dtype").fill_null(""),
        pl.col("bytes").fill_null(-1),
    ).with_columns(start=pl.Series(start))
    ordered = table.with_row_index("row").sort("start")
    numbered = ordered.with_columns(nth=pl.int_range(pl.len()).over("collective", "group", "dtype", "bytes")).sort(
        "row"
    )
    return numbered.select("collective", "group", "dtype", "bytes", "nth")


def _kind(collective: str | None, group_ranks: str | None, rank: int) -> str:
    text = collective or ""
    members = [int(part) for part in re.findall(r"\d+", group_ranks or "")]
    if text not in ("send", "recv") or len(members) != 2:
        return text
    sender = rank if text == "send" else next((other for other in members if other != rank), rank)
    return f"message from {sender}"


def clock_shifts(members: Sequence[Member]) -> dict[int, int]:
    """What to add to each rank's times so that shared collectives end together, in ns.

    The first rank's clock counts.
    """
    if not members:
        return {}
    shifts = {members[0].rank: 0}
    reference = members[0].keys.with_columns(reference=pl.Series(members[0].end))
    for member in members[1:]:
        both = member.keys.with_columns(own=pl.Series(member.end)).join(reference, on=member.keys.columns, how="inner")
        apart = (both["reference"] - both["own"]).to_numpy()
        shifts[member.rank] = int(np.median(apart)) if len(apart) else 0
    return shifts


def meet(draft: Draft, members: Sequence[Member]) -> int:
    """Joins the collectives that all ranks of the run recorded; returns how many were joined.

    A rank's own part ends when it has arrived; the transfer, from the last arrival to the first end, is a node of its
    own that every rank waits for. Times of members must be on one clock.
    """
    tables = [
        member.keys.with_columns(
            body=pl.Series(member.body),
            exit=pl.Series(member.exit),
            start=pl.Series(member.start),
            end=pl.Series(member.end),
        )
        for member in members
    ]
    keys = members[0].keys.columns
    everything = pl.concat(tables)
    groups = everything.group_by(keys, maintain_order=True).agg(
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
    parts = everything.join(shared.select(keys).with_columns(transfer=pl.Series(transfer)), on=keys, how="inner")
    body, leaves, node = (parts[name].to_numpy() for name in ("body", "exit", "transfer"))
    draft.shorten(body)
    draft.edges(body, node, EdgeKind.RENDEZVOUS)
    draft.edges(node, leaves, EdgeKind.RENDEZVOUS)
    # What begins at the very instant at which a transfer ended may have waited for it.
    lasting = (shared["ended"] > shared["arrived"]).to_numpy()
    draft.first(leaves[np.isin(node, transfer[lasting])])
    return len(shared)
