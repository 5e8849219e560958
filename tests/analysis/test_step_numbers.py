"""Ranks that were not recorded from the same step on: numbered by hand, and as a job of two ranks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.diagnosis.jobs import message

from whystall.analysis.step_numbers import shared, shifts
from whystall.replay.build import build_graph
from whystall.replay.graph import play
from whystall.replay.outcome import step_lengths_ns
from whystall.testing import TraceBuilder, trace

STEP = 10_000_000
REDUCE = 2_000_000
STALL = 80_000_000


@pytest.mark.parametrize(
    ("meetings", "steps", "expected"),
    [
        pytest.param([[1, 2, 3], [1, 2, 3]], [[0, 1, 2], [0, 1, 2]], [0, 0], id="alike"),
        pytest.param([[1, 2, 3], [2, 3, 4]], [[0, 1, 2], [0, 1, 2]], [0, 1], id="a-step-later"),
        pytest.param([[2, 3, 4], [1, 2, 3]], [[0, 1, 2], [0, 1, 2]], [0, -1], id="a-step-earlier"),
        pytest.param([[1, 2, 3], [2, 3, 4], [3, 4, 5]], [[0, 1, 2]] * 3, [0, 1, 2], id="one-after-the-other"),
        pytest.param([[1, 2], [3, 4]], [[0, 1], [0, 1]], [0, 0], id="nothing-in-common"),
        pytest.param([[1, 2, 3], [1, 2, 3]], [[0, 1, 2], [-1, 0, 1]], [0, 1], id="one-before-the-steps"),
        pytest.param([[1, 2], [1, 2]], [[0, 1], [0, 2]], [0, 0], id="they-disagree"),
    ],
)
def test_numbers_follow_what_ranks_share(
    meetings: list[list[int]], steps: list[list[int]], expected: list[int]
) -> None:
    assert shifts([np.array(one, np.int64) for one in steps], [np.array(one, np.int64) for one in meetings]) == expected


def test_steps_that_all_ranks_recorded() -> None:
    assert shared([np.array([0, 1, 2]), np.array([1, 2, 3])]) == {1, 2}
    assert shared([np.array([0, 1, 2]), np.array([2, 3, 4])]) == {0, 1, 2, 3, 4}  # one step has no length
    assert shared([np.array([0, 1]), np.zeros(0, np.int64)]) == {0, 1}


def one_rank(first: int, *, stalls_in: int = -1) -> TraceBuilder:
    """Five steps from ``first`` on, each with two sums; in the first sum of one step it waits for the other rank."""
    built, late = trace(), 0
    for number in range(first, first + 5):
        begin = number * STEP + late
        for place, elements in enumerate((1024, 4096)):
            waits = STALL if number == stalls_in and place == 0 else 0
            runs = begin + 1_000_000 + place * 2 * REDUCE + (STALL if number == stalls_in and place else 0)
            told = {"runs_at": runs, "lasts": REDUCE + waits, **message("allreduce", elements)}
            built.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", at=begin + 10_000 * place, **told)
        late += STALL if number == stalls_in else 0
        built.step(number, at=begin, lasts=STEP + (STALL if number == stalls_in else 0))
    return built


def test_a_step_in_which_a_rank_waits_for_one_that_writes_its_trace_is_none_of_the_jobs() -> None:
    """Rank 0 recorded the steps 10 to 14, rank 1 those from 11 to 15: in the last one it waits for rank 0 to go on."""
    graph = build_graph([(0, one_rank(10).load()), (1, one_rank(11, stalls_in=15).load())])
    assert step_lengths_ns(graph, play(graph)).tolist() == [STEP] * 3
