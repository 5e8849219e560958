"""Where a run changes its pace for good: built step times, whose changes are known."""

from __future__ import annotations

import numpy as np
import pytest

from whystall.analysis.pace_changes import FEWEST, pace_changes


def noisy(rng: np.random.Generator, steps: int, sigma: float) -> np.ndarray:
    duration = 10e6 * np.exp(rng.normal(0, sigma, steps))
    duration[rng.random(steps) < 0.05] *= 5  # now and then a slow one
    return duration


@pytest.mark.parametrize("seed", range(40))
def test_noise_and_slow_steps_are_no_change(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert pace_changes(noisy(rng, int(rng.integers(40, 3000)), rng.uniform(0.01, 0.4)).astype(np.int64)) == []


@pytest.mark.parametrize("seed", range(40))
def test_a_change_is_found_within_some_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(100, 3000))
    at = int(rng.integers(FEWEST + 10, steps - FEWEST - 10))
    duration = noisy(rng, steps, rng.uniform(0.01, 0.12))
    duration[at:] *= rng.choice([1.7, 3.0, 1 / 3])
    (found,) = pace_changes(duration.astype(np.int64))
    assert abs(found - at) <= FEWEST // 2


def test_two_changes_to_new_paces_are_both_found() -> None:
    duration = np.repeat(np.array([10, 20, 45], np.int64) * 1_000_000, [300, 100, 60])
    assert pace_changes(duration) == [300, 400]


def test_a_slow_rise_and_a_short_run_have_none() -> None:
    assert pace_changes(np.linspace(1e6, 9e6, 2000).astype(np.int64)) == []
    assert pace_changes(np.repeat([1_000_000, 9_000_000], 2 * FEWEST // 2 - 1)) == []
    assert pace_changes(np.zeros(0, np.int64)) == []


def test_what_happens_in_every_second_step_is_a_pace() -> None:
    duration = np.full(600, 3_000_000, np.int64)
    duration[501::2] = 1_300_000_000
    (found,) = pace_changes(duration)
    assert abs(found - 500) <= 2
