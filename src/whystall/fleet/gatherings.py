"""The collectives of many ranks together: who comes late, who waits, and the rows of all; from summaries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.communication import Collectives, communication_results
from whystall.analysis.meetings import Attendance, meetings
from whystall.analysis.rank_clocks import rank_clocks
from whystall.analysis.rank_meetings import job_communication
from whystall.analysis.results import Collective, RankMeetings
from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.analysis.waiting import WANTED, waiting
from whystall.fleet.summary import Candidate

MOST_ROWS: Final = 1_500_000
"""Collectives of all ranks together that are matched: the first of each rank. They take some 600 bytes each."""

# A rank that comes later by less than this, as a share of the transfer or in ns, delays the others hardly.
_SLACK: Final = 0.05
_SLACK_NS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Late:
    """A rank, how many of the ``matched`` collectives it came last to, and by how much later than all others in all."""

    rank: int
    times: int
    matched: int
    late_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Gatherings:
    """The numbers of each rank's meetings, and when it waited or came last."""

    ranks: list[int]
    numbers: list[NDArray[np.int64]]
    waits: list[pl.DataFrame]
    wanted: list[pl.DataFrame]
    """When each collective began (ns on the rank's own clock), and how many ranks are to come."""

    def late(self) -> list[Late]:
        """The ranks that came last, the largest total lateness first."""
        found = [
            Late(rank, int(wait["last"].sum()), len(wait) - wait["wait_ns"].null_count(), int(wait["alone_ns"].sum()))
            for rank, wait in zip(self.ranks, self.waits, strict=True)
        ]
        return sorted((one for one in found if one.times), key=lambda one: (-one.late_ns, one.rank))

    def typical_waiter(self, late: int) -> int | None:
        """The rank with the median wait among those that wait for ``late``; ``None`` where none waits."""
        place = self.ranks.index(late)
        its = self.numbers[place][self.waits[place]["last"].to_numpy()]
        spent = [
            (int(wait["wait_ns"].to_numpy()[here].sum()), rank)
            for rank, number, wait in zip(self.ranks, self.numbers, self.waits, strict=True)
            if rank != late and (here := np.isin(number, its)).any()
        ]
        return sorted(spent)[(len(spent) - 1) // 2][1] if spent else None

    def attended(self, ranks: Collection[int]) -> dict[int, NDArray[np.int64]]:
        """These ranks' collectives for `whystall.diagnosis.summarised.Summarised`, from all ranks' records."""
        parts = [
            wait.select("wait_ns", "transfer_ns", number=pl.Series(number), rank=pl.lit(rank, pl.Int64)).hstack(own)
            for rank, number, wait, own in zip(self.ranks, self.numbers, self.waits, self.wanted, strict=True)
        ]
        if not parts:
            return {}
        at_hand = pl.col("rank").is_in(list(ranks))
        later_ns = pl.col("wait_ns").filter(at_hand).min().over("number")
        slack_ns = pl.max_horizontal(_SLACK * pl.col("transfer_ns"), pl.lit(_SLACK_NS))
        known = pl.concat(parts).filter(at_hand.any().over("number"))
        whole = known.filter((pl.len().over("number") >= pl.col("wanted")) & (later_ns <= slack_ns)).filter(at_hand)
        found = whole.sort("start").partition_by("rank", as_dict=True)
        return {rank: found[(rank,)]["start"].to_numpy() for rank in ranks if (rank,) in found}


def gatherings(candidates: Sequence[Candidate]) -> Gatherings:
    """The arrivals of the recorded ranks: no rank is seen to wait for an unrecorded one."""
    most = MOST_ROWS // max(len(candidates), 1)
    ordered = sorted(candidates, key=lambda one: one.rank)
    sized = [one.summary.instances.collectives(one.rank, most) for one in ordered]
    known = [_as_it_is(one) for one in sized]
    numbers = meetings(known)
    waits = waiting(known, numbers, rank_clocks(known, numbers))
    wanted = [one.table.select("start", WANTED) for one in sized]
    return Gatherings([one.rank for one in ordered], numbers, waits, wanted)


def _as_it_is(collectives: Collectives) -> Attendance:
    """A rank's attendance without its groups' sizes: the present ranks decide which of them is late."""
    unsized = collectives.table.with_columns(group_size=pl.lit(None, pl.Int64))
    return Collectives(collectives.rank, unsized).attendance


def all_communication(
    analyses: Sequence[TraceAnalysis], others: Sequence[Candidate]
) -> tuple[list[Collective], list[RankMeetings]]:
    """The rows of all ranks by rank, and who waits for whom; ``others`` are ranks with summaries alone.

    With more collectives than `MOST_ROWS` the first ones of each rank determine the waiting, and the rows omit it.
    """
    ranks = len(analyses) + len(others)
    most = MOST_ROWS // max(ranks, 1) if others else None
    found = [
        *((_first(one.collectives, most), one.links) for one in analyses),
        *((one.summary.instances.collectives(one.rank, most), one.summary.links) for one in others),
    ]
    found.sort(key=lambda one: one[0].rank)
    rows, met = job_communication([one for one, _ in found], [links for _, links in found])
    longest = max(
        [len(one.collectives.table) for one in analyses]
        + [one.summary.instances.count + one.summary.instances.left_out for one in others],
        default=0,
    )
    if most is not None and longest > most:
        rows = [row for one in analyses for row in communication_results(one.collectives, one.links)]
        rows += [row for one in others for row in one.summary.communication]
    return sorted(rows, key=lambda row: row.rank), met


def _first(collectives: Collectives, most: int | None) -> Collectives:
    if most is None or len(collectives.table) <= most:
        return collectives
    return Collectives(collectives.rank, collectives.table.sort("start", maintain_order=True).head(most))
