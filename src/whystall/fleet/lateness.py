"""Who comes late to collectives, and who waits: from the instances of all ranks, without a trace at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from whystall.fleet.instances import Instances

MOST_ROWS: Final = 6_000_000
"""Instances of all ranks together that are looked at: some 400 MB while they are matched."""
_ROUNDS: Final = 8
_BY_KEY: Final = ("key", "nth")


@dataclass(frozen=True, slots=True)
class Late:
    """A rank, how many of the ``matched`` collectives it came last to, and by how much later than most in all."""

    rank: int
    times: int
    matched: int
    late_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Each rank's arrival at each collective that several recorded, on one clock: key, nth, rank, start, end, last."""

    table: pl.DataFrame

    def late(self) -> list[Late]:
        """The ranks that came last, those that are latest in all first."""
        if self.table.is_empty():
            return []
        matched = self.table.group_by("rank").agg(pl.len().alias("matched"))
        last = (
            self.table.filter(pl.col("rank") == pl.col("last"))
            .group_by("rank")
            .agg(pl.len().alias("times"), (pl.col("start") - pl.col("middle")).sum().cast(pl.Int64).alias("late"))
            .join(matched, on="rank")
            .sort(["late", "rank"], descending=[True, False])
        )
        return [Late(row["rank"], row["times"], row["matched"], row["late"]) for row in last.iter_rows(named=True)]

    def typical_waiter(self, late: int) -> int | None:
        """Of those that wait for a rank the one that waits as long as most; ``None`` where nobody does."""
        waits = (
            self.table.filter((pl.col("last") == late) & (pl.col("rank") != late))
            .group_by("rank")
            .agg((pl.col("latest") - pl.col("start")).sum().alias("wait"))
            .sort("wait", "rank")
        )
        return None if waits.is_empty() else int(waits["rank"][(len(waits) - 1) // 2])


def arrivals(instances: Mapping[int, Instances]) -> Arrivals:
    """The matched collectives of the ranks: by kind, group, type and size, and by number or else by order."""
    most = MOST_ROWS // max(len(instances), 1)
    parts = [_numbered(one.table().head(most), rank) for rank, one in sorted(instances.items()) if one.count]
    everything = pl.concat(parts) if parts else _numbered(pl.DataFrame(), 0)
    counts = everything.group_by(_BY_KEY).agg(pl.len().alias("ranks"))
    shared = everything.join(counts.filter(pl.col("ranks") >= 2), on=_BY_KEY, how="inner").drop("ranks")
    if shared.is_empty():
        return Arrivals(shared)
    aligned = _on_one_clock(shared)
    said = (
        aligned.sort("start", "rank")
        .group_by(_BY_KEY)
        .agg(
            pl.col("start").max().alias("latest"),
            pl.col("start").median().alias("middle"),
            pl.col("rank").last().alias("last"),
        )
    )
    return Arrivals(aligned.join(said, on=_BY_KEY, how="inner").sort(*_BY_KEY, "rank"))


def _numbered(table: pl.DataFrame, rank: int) -> pl.DataFrame:
    """A rank's instances with what names each: a key, and a number among those of the same key."""
    if table.is_empty():
        kinds = {"rank": pl.UInt32, "key": pl.UInt64, "nth": pl.Int64, "start": pl.Int64, "end": pl.Int64}
        return pl.DataFrame(schema=kinds)
    named = table.with_columns(
        pl.struct("collective", "group", "group_ranks", "dtype", "bytes").hash(seed=1).alias("key")
    )
    return named.select(
        pl.lit(rank, pl.UInt32).alias("rank"),
        "key",
        pl.coalesce("sequence_number", pl.int_range(pl.len()).over("key")).cast(pl.Int64).alias("nth"),
        "start",
        "end",
    ).unique(["key", "nth"], keep="first", maintain_order=True)


def _on_one_clock(table: pl.DataFrame) -> pl.DataFrame:
    """The times moved by as much for each rank as makes shared collectives end together, by medians in turn."""
    shift = pl.DataFrame({"rank": table["rank"].unique().sort()}).with_columns(pl.lit(0, pl.Int64).alias("shift"))
    for _ in range(_ROUNDS):
        moved = table.join(shift, on="rank", how="left").with_columns(pl.col("end") + pl.col("shift"))
        apart = moved.with_columns((pl.col("end").median().over(_BY_KEY) - pl.col("end")).alias("apart"))
        more = apart.group_by("rank").agg(pl.col("apart").median().round().cast(pl.Int64).alias("more"))
        if not np.any(more["more"].to_numpy()):
            break
        shift = shift.join(more, on="rank", how="left").select("rank", pl.col("shift") + pl.col("more"))
    moved = table.join(shift, on="rank", how="left")
    return moved.with_columns(pl.col("start") + pl.col("shift"), pl.col("end") + pl.col("shift")).drop("shift")
