"""The communication of a whole job: its ranks' collectives matched, on one clock, waiting apart from transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whystall.analysis.communication import Collectives, communication_results
from whystall.analysis.meetings import meetings
from whystall.analysis.rank_clocks import rank_clocks
from whystall.analysis.results import Collective, RankMeetings
from whystall.analysis.waiting import waiting


def job_communication(
    ranks: Sequence[Collectives], links: Sequence[Mapping[int, float]]
) -> tuple[list[Collective], list[RankMeetings]]:
    """The rows of all ranks, and who waits for whom; ``links`` are the peaks of each rank's links.

    A single rank's waiting is unknown, and its rows are as `communication_results` makes them.
    """
    attendances = [one.attendance for one in ranks]
    numbers = meetings(attendances)
    clocks = rank_clocks(attendances, numbers)
    waits = waiting(attendances, numbers, clocks) if len(ranks) > 1 else [None for _ in ranks]
    rows = [
        row
        for one, link, wait in zip(ranks, links, waits, strict=True)
        for row in communication_results(one, link, wait)
    ]
    found = []
    for one, wait in zip(ranks, waits, strict=True):
        met = 0 if wait is None else len(wait) - wait["wait_ns"].null_count()
        if wait is None or not met:
            continue
        clock = clocks[one.rank]
        found.append(
            RankMeetings(
                rank=one.rank,
                meetings=met,
                last=int((wait["alone_ns"] > 0).sum()),
                wait_ns=int(wait["wait_ns"].sum()),
                alone_ns=int(wait["alone_ns"].sum()),
                clock_offset_ns=clock.offset_ns,
                clock_drift=clock.drift,
                clock_uncertainty_ns=clock.uncertainty_ns,
            )
        )
    return rows, found
