"""Two ranks under each other: the same moments on clocks that are far apart, and whose lanes are whose."""

from __future__ import annotations

import pytest
from tests.diagnosis.jobs import Job
from tests.diagnosis.test_many_ranks import LATE, NCCL, data_parallel, skewed

import whystall
from whystall.analysis.run_results import SideBySide
from whystall.report.schema import Report


def report_on(jobs: list[Job]) -> Report:
    return whystall.analyze([job.built.load() for job in jobs])


def reductions(two: SideBySide, rank: int) -> list[tuple[int, int]]:
    """Begin and end of the all_reduces that are drawn of a rank."""
    names = two.drawn.names
    return [
        (begin, begin + length)
        for lane in two.drawn.lanes
        if lane.label.startswith(f"rank {rank}, stream")
        for begin, length, name, _ in lane.events
        if names[name] == NCCL
    ]


@pytest.mark.parametrize("apart", [False, True])
def test_collectives_end_together_whatever_the_clocks_say(*, apart: bool) -> None:
    """Clocks up to a second apart and 50 parts in a million: without them nothing of the other rank is in the step."""
    jobs = data_parallel(8, python=1_200_000)
    report = report_on(skewed(jobs) if apart else jobs)
    two = report.side_by_side
    assert two is not None
    assert (two.late, two.drawn.rank) == (LATE, LATE)
    waits = {row.rank: row.wait_ns for row in report.ranks if row.rank != LATE}
    assert waits[two.waiting] == max(waits.values())
    (late_begin, late_end), (begin, end) = *reductions(two, LATE), *reductions(two, two.waiting)
    assert end == pytest.approx(late_end, abs=10_000)
    assert late_begin - begin == pytest.approx(1_200_000, rel=0.1)


def test_each_lane_says_whose_it_is() -> None:
    two = report_on(data_parallel(8, python=1_200_000)).side_by_side
    assert two is not None
    assert {lane.label.split(",")[0] for lane in two.drawn.lanes} == {f"rank {LATE}", f"rank {two.waiting}"}
    assert next(lane.label.split(",")[0] for lane in two.drawn.lanes) == f"rank {LATE}"


def test_where_no_rank_is_late_there_is_nothing_to_show() -> None:
    assert report_on(data_parallel(8)).side_by_side is None
    assert whystall.analyze(data_parallel(1)[0].built.load()).side_by_side is None
