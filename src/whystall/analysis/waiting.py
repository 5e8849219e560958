"""Waiting in collectives: which rank waits for which, how long the transfer itself takes, and its bandwidth."""

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
    """The ``wait_ns``, ``transfer_ns``, ``alone_ns`` and ``last`` of each rank's collectives, in their order.

    A rank waits from its arrival until the last one has come; the transfer lasts from then until the first one has its
    end. The rank that comes ``last`` makes all wait, ``alone_ns`` of it longer than the one before it would. For groups
    with unrecorded ranks the straggler is unknown: the times are null, none is last.
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
