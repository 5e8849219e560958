"""Steps that not every rank recorded are marked, and stand for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests.analysis.test_step_numbers import STALL, STEP, one_rank

from whystall.analysis.shared_steps import marked_unshared
from whystall.analysis.steadiness import mean_step, steady
from whystall.analysis.trace_analysis import TraceAnalysis, analyze_trace
from whystall.testing import TraceBuilder


def marked(ranks: Sequence[TraceBuilder]) -> list[TraceAnalysis]:
    traces = [one.load() for one in ranks]
    return marked_unshared(traces, [analyze_trace(trace, rank=rank) for rank, trace in enumerate(traces)])


def unshared(analysis: TraceAnalysis) -> list[str]:
    return [step.name for device in analysis.devices for step in device.steps if step.unshared]


def test_the_step_that_waits_for_a_rank_that_writes_its_trace_stands_for_none() -> None:
    """Rank 0 has the steps 10 to 14, rank 1 those from 11 to 15; the sums of a step begin 1 ms after it."""
    first, second = marked([one_rank(10), one_rank(11, stalls_in=15)])
    assert (unshared(first), unshared(second)) == (["ProfilerStep#10"], ["ProfilerStep#15"])
    (device,) = second.devices
    assert max(step.window_ns for step in device.steps) > STALL
    mean = mean_step(device.steps)
    assert mean is not None
    assert (mean.steps, mean.window_ns) == (4, STEP)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param([one_rank(10)], id="alone"),
        pytest.param([one_rank(10), one_rank(10)], id="the-same-steps"),
        pytest.param([one_rank(10), one_rank(10, stalls_in=12)], id="a-stall-of-the-job's"),
    ],
)
def test_steps_of_the_job_are_not_marked(ranks: list[TraceBuilder]) -> None:
    assert [unshared(one) for one in marked(ranks)] == [[] for _ in ranks]


def test_where_nothing_is_shared_all_of_it_stands() -> None:
    (device,) = marked([one_rank(10)])[0].devices
    alone = [msgspec.structs.replace(step, unshared=True) for step in device.steps]
    assert [step.name for step in steady(alone)] == [step.name for step in steady(device.steps)]
