"""Who waits for whom in collectives, how long the transfer itself takes, and at what bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.meetings import Attendance
from whystall.analysis.rank_clocks import RankClock

_POINT_TO_POINT: Final = r"^(send|recv|send_recv|message)"


def waiting(
    ranks: Sequence[Attendance], numbers: Sequence[NDArray[np.int64]], clocks: dict[int, RankClock]
) -> list[pl.DataFrame]:
    """Of each rank's collectives, in their order: ``wait_ns``, ``transfer_ns``, ``alone_ns`` and ``last``.

    A rank waits from when it comes until the last one has come; from then until the first one has its end the transfer
    takes place. The rank that comes ``last`` makes all wait, of it by ``alone_ns`` longer than the one before it. Of
    groups of which not all ranks were recorded nobody knows for whom they waited: the times are null, none is last.
    """
    parts = [
        pl.DataFrame(
            {
                "member": np.full(len(one.start), member, np.int32),
                "number": number,
                "start": clocks[one.rank].shared(one.start),
                "end": clocks[one.rank].shared(one.end),
                "wanted": one.records.select(WANTED).to_series(),
            }
        )
        for member, (one, number) in enumerate(zip(ranks, numbers, strict=True))
    ]
    if not parts:
        return []
    table = pl.concat(parts).with_columns(
        came=pl.col("start").max().over("number"),
        ended=pl.col("end").min().over("number"),
        before=pl.col("start").sort().slice(-2, 1).first().over("number"),
        present=pl.len().over("number"),
    )
    whole = (pl.col("present") > 1) & (pl.col("present") >= pl.col("wanted"))
    last = pl.col("start") == pl.col("came")
    until = pl.min_horizontal("came", "end")
    found = table.select(
        "member",
        wait_ns=pl.when(whole).then(until - pl.col("start")),
        transfer_ns=pl.when(whole).then((pl.col("ended") - pl.col("came")).clip(0)),
        alone_ns=pl.when(whole).then(pl.when(last).then(pl.col("came") - pl.col("before")).otherwise(0)),
        last=whole & last,
    )
    return [found.filter(pl.col("member") == member).drop("member") for member in range(len(ranks))]


WANTED: Final = (
    pl.when(pl.col("collective").str.contains(_POINT_TO_POINT))
    .then(pl.lit(2))
    .otherwise(pl.col("group_size").fill_null(1))
    .cast(pl.Int64)
    .alias("wanted")
)
"""How many ranks are to come to a collective: those of its group, of a message two."""
