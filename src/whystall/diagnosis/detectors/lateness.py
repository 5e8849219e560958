"""Whom ranks wait for in collectives: not who comes last to one, but who made that rank come last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from whystall.diagnosis.case import Case

# The last rank is late by its own work if that exceeds the others' by this share of their wait.
_OWN: Final = 0.5


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective of several ranks, and its straggler, by its own work since its last one or ``handed_on``.

    ``wait_ns`` is the others' median wait.
    """

    rank: int
    wait_ns: int
    handed_on: bool


def meetings(case: Case) -> list[Meeting]:
    """The collectives of the window in which ranks meet, in the order in which they were complete.

    A rank that waited in one group comes late to the next one of another group, and that whole group waits for it: the
    delay is passed on. So the last rank's work since its last collective decides: if it worked no longer than the
    others, it was late already, and the rank that delayed it then is the straggler.
    """
    table = _attended(case)
    out: list[Meeting] = []
    blamed: dict[int, int] = {}
    for transfer, rank, wait, longer, before in table.iter_rows():
        by_itself = before not in blamed or longer is None or longer >= _OWN * wait
        blamed[transfer] = rank if by_itself else blamed[before]
        out.append(Meeting(blamed[transfer], int(wait), not by_itself))
    return out


def _attended(case: Case) -> pl.DataFrame:
    """Per meeting: the transfer, who came last, how long the others waited, and of the last rank two things.

    How much longer it worked since its last meeting than the others did since theirs, and which meeting that was.
    """
    graph, transfer = case.replayed, case.transfer_of
    nodes = np.flatnonzero((transfer >= 0) & case.in_window(np.ones(len(transfer), np.bool_)))
    of = transfer[nodes]
    rows = pl.DataFrame(
        {
            "transfer": of,
            "rank": graph.rank[nodes],
            "start": graph.start[nodes],
            "end": graph.start[of] + graph.duration[of],
        }
    )
    came = pl.col("start") == pl.col("start").max()
    return (
        rows.sort("rank", "start", "transfer")
        .with_columns(
            before=pl.col("transfer").shift().over("rank"),
            worked=pl.col("start") - pl.col("end").shift().over("rank"),
        )
        .sort("transfer", "start", "rank")
        .group_by("transfer", maintain_order=True)
        .agg(
            pl.col("start").max().alias("came"),
            pl.col("rank").last(),
            (pl.col("start").max() - pl.col("start").slice(0, pl.len() - 1).median()).alias("wait"),
            (pl.col("worked").last() - pl.col("worked").filter(~came).median()).alias("longer"),
            pl.col("before").last(),
            pl.len().alias("ranks"),
        )
        .filter(pl.col("ranks") > 1)
        .sort("came", "transfer")
        .select("transfer", "rank", "wait", "longer", "before")
    )
