"""Steps before and after windows of recorded ones, where the truth is known by construction."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from whystall.analysis.after_windows import recorded_windows
from whystall.analysis.run_results import RecordedWindow

NS: Final = 10_000_000


def windows(*stretches: tuple[int, float], scatter: float = 0.01, warm_up: int = 5) -> list[RecordedWindow]:
    """A run of stretches of so many steps of so many times the usual length; recorded ones have a negative count."""
    random = np.random.default_rng(0)
    counts = np.array([count for count, _ in stretches])
    length = np.repeat([times for _, times in stretches], np.abs(counts))
    duration = (NS * length * (1 + scatter * random.standard_normal(len(length)))).astype(np.int64)
    return recorded_windows(duration, np.repeat(counts < 0, np.abs(counts)), warm_up)


def test_a_window_is_held_against_what_comes_before_and_after_it() -> None:
    (one,) = windows((100, 1.0), (-3, 1.8), (300, 1.15))
    assert (one.step, one.steps_after) == (100, 300)
    assert one.before_ns == pytest.approx(NS, rel=0.01)
    assert one.after_ns == pytest.approx(1.15 * NS, rel=0.01)
    assert one.usual_change is not None
    assert one.usual_change < 0.02
    assert 0 < one.error_ns < 0.01 * NS


def test_what_passes_again_counts_by_its_faster_half() -> None:
    (one,) = windows((100, 1.0), (-3, 1.8), (100, 1.2), (100, 1.0))
    assert one.after_ns == pytest.approx(NS, rel=0.01)


def test_what_is_over_after_the_next_window_did_not_stay() -> None:
    first, second = windows((100, 1.0), (-20, 1.3), (25, 1.2), (-9, 1.5), (250, 1.0))
    assert first.after_ns == pytest.approx(NS, rel=0.01)
    assert second.after_ns == pytest.approx(NS, rel=0.01)
    first, second = windows((100, 1.0), (-20, 1.3), (25, 1.2), (-9, 1.5), (250, 1.2))
    assert first.after_ns == pytest.approx(1.2 * NS, rel=0.01)


def test_a_slowdown_that_came_and_went_before_the_window_is_a_usual_change() -> None:
    (one,) = windows((100, 1.0), (12, 1.4), (20, 1.0), (-3, 1.8), (300, 1.3))
    assert one.usual_change is not None
    assert one.usual_change > 0.25


def test_steps_that_grow_longer_anyhow_are_known_by_their_other_stretches() -> None:
    rising = tuple((20, 1 + 0.03 * at) for at in range(10))
    (one,) = windows(*rising, (-3, 2.0), *((20, 1.3 + 0.03 * at) for at in range(10)))
    assert one.usual_change is not None
    assert one.usual_change > 0.05


@pytest.mark.parametrize(
    "stretches",
    [
        pytest.param([(12, 1.0), (-3, 2.0), (300, 1.0)], id="too few before, without the first ones"),
        pytest.param([(100, 1.0), (-3, 2.0), (9, 1.0)], id="too few after"),
        pytest.param([(300, 1.0)], id="no window"),
        pytest.param([(-30, 1.0)], id="nothing else"),
    ],
)
def test_nothing_is_compared_of_too_few_steps(stretches: list[tuple[int, float]]) -> None:
    assert windows(*stretches) == []


def test_of_short_runs_the_usual_change_is_not_known() -> None:
    (one,) = windows((30, 1.0), (-3, 2.0), (30, 1.2))
    assert one.usual_change is None


def test_each_window_has_its_own_neighbours() -> None:
    first, second = windows((60, 1.0), (-3, 2.0), (60, 1.1), (-3, 2.0), (60, 1.1))
    assert first.after_ns == pytest.approx(second.before_ns, rel=0.01)
    assert (first.steps_after, second.steps_after) == (120, 60)
