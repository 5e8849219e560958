"""Where in a step a cause is at work."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.diagnosis.cases import found_in, loop

from whystall.diagnosis.picture import _merged

PYTHON_NS = 4_000_000
STEP_NS = PYTHON_NS + 2 * 501_000 + 15_000


def test_python_is_marked_where_it_runs() -> None:
    finding = found_in(loop(python_ns=PYTHON_NS))["host.python"]
    place = finding.in_step
    assert place is not None
    assert (place.rank, place.device) == (0, 0)
    assert place.window_ns == pytest.approx(STEP_NS, rel=0.01)
    # After each operator of 20 us, too, nothing is recorded of the host until the next one or the wait.
    assert sum(length for _, length in place.marks) == PYTHON_NS + 2 * (501_000 - 20_000)
    assert all(begin >= 0 and begin + length <= place.window_ns for begin, length in place.marks)


def test_what_happens_in_no_part_of_the_step_that_is_drawn_is_not_marked() -> None:
    finding = found_in(loop(fetch_ns=PYTHON_NS))["input.synchronous-loader"]
    assert finding.in_step is not None
    assert sum(length for _, length in finding.in_step.marks) == pytest.approx(PYTHON_NS, rel=0.01)


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 500)), max_size=60),
    st.integers(1, 200),
)
def test_marks_are_apart_and_hold_all_that_is_marked(intervals: list[tuple[int, int]], close: int) -> None:
    begin = np.array([low for low, _ in intervals], np.int64)
    end = begin + np.array([length for _, length in intervals], np.int64)
    marks = _merged(begin, end, close)
    assert marks == sorted(marks)
    for (low, length), (after, _) in pairwise(marks):
        assert after - (low + length) > close
    for low, high in zip(begin.tolist(), end.tolist(), strict=True):
        assert any(mark <= low and high <= mark + length for mark, length in marks)
    covered = {at for low, high in zip(begin.tolist(), end.tolist(), strict=True) for at in range(low, high)}
    assert len(covered) <= sum(length for _, length in marks) <= len(covered) + close * len(intervals)
