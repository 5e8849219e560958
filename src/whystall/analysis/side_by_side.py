"""A step of the rank that keeps others waiting and, under it, the same moments of one that waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from whystall.analysis.device import devices_of
from whystall.analysis.meetings import meetings
from whystall.analysis.rank_clocks import rank_clocks
from whystall.analysis.results import Lane, RankMeetings
from whystall.analysis.run_results import SideBySide
from whystall.analysis.timelines import lanes_within
from whystall.analysis.trace_analysis import TraceAnalysis
from whystall.trace.model import Trace

# Limit for each rank: more do not fit under each other on a screen.
_MOST_LANES: Final = 3


def side_by_side(
    late: int, traces: Sequence[Trace], analyses: Sequence[TraceAnalysis], waits: Sequence[RankMeetings]
) -> SideBySide | None:
    """The step that the timeline of the late rank draws, and the rank that waits longest in the same time.

    ``waits`` holds each rank's waiting time. ``None`` where the late rank has no timeline, or no other rank waits.
    """
    known = {analysis.rank: (trace, analysis) for trace, analysis in zip(traces, analyses, strict=True)}
    waited = {row.rank: row.wait_ns for row in waits if row.rank != late and row.rank in known}
    waiting = max(waited, key=lambda rank: (waited[rank], -rank), default=None)
    own = next(iter(known[late][1].timelines), None) if late in known else None
    if waiting is None or not waited[waiting] or own is None:
        return None
    names = {name: number for number, name in enumerate(own.names)}
    begin = own.start_ns + known[late][1].origin_ns
    span = _on_other_clock((begin, own.window_ns), late, waiting, analyses)
    other = _lanes_of(*known[waiting], span, names)
    if not other:
        return None
    lanes = [*_of_rank(late, own.lanes), *_of_rank(waiting, other)]
    return SideBySide(late=late, waiting=waiting, drawn=msgspec.structs.replace(own, lanes=lanes, names=list(names)))


def _on_other_clock(
    span: tuple[int, int], late: int, waiting: int, analyses: Sequence[TraceAnalysis]
) -> tuple[int, int]:
    """Begin and length of the late rank's drawn time, on the clock of the waiting one."""
    attendances = [analysis.collectives.attendance for analysis in analyses]
    clocks = rank_clocks(attendances, meetings(attendances))
    first, last = clocks[waiting].own(clocks[late].shared(np.array([span[0], sum(span)]))).tolist()
    return first, last - first


def _lanes_of(trace: Trace, analysis: TraceAnalysis, span: tuple[int, int], names: dict[str, int]) -> list[Lane]:
    device = next(iter(analysis.devices))
    found = devices_of(trace, analysis.workings.classified.class_of).get(device.device)
    return lanes_within(trace, found, [row.stream for row in device.streams], span, names)


def _of_rank(rank: int, lanes: Sequence[Lane]) -> list[Lane]:
    """The busiest lanes, named by their rank as well."""
    return [msgspec.structs.replace(lane, label=f"rank {rank}, {lane.label}") for lane in lanes[:_MOST_LANES]]
