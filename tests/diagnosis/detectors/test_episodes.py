"""Episodes of steps: how long they take where they lie in each other."""

from __future__ import annotations

import numpy as np

from whystall.diagnosis.detectors.episodes import _union_ns, outermost


def test_intervals_that_lie_in_each_other_count_once() -> None:
    begin, end = np.array([0, 10, 50, 200]), np.array([100, 20, 150, 210])
    assert _union_ns(begin, end) == 160
    assert outermost(np.array([0, 10, 200]), np.array([100, 20, 210])).tolist() == [0, 200]
