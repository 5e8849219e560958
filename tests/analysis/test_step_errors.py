"""How well a run knows its own step: held against many runs of the same kind, whose true step is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from benchmarks.same_twice import Draw, alike, visited, white
from numpy.typing import NDArray

from whystall.analysis.step_errors import FEWEST_STEPS, mean_error, median_error


def held(draw: Draw, of: Callable[..., Any], error: Callable[..., float]) -> int:
    """Of sixty runs those whose interval holds what runs of the kind have in the middle."""
    generator = np.random.default_rng(11)
    runs = [draw(generator, 200) for _ in range(60)]
    middle = float(of([of(run) for run in runs]))
    return sum(bool(abs(of(run) - middle) <= 1.96 * error(run)) for run in runs)


@pytest.mark.parametrize(("of", "error"), [(np.mean, mean_error), (np.median, median_error)])
def test_steps_that_know_nothing_of_each_other_know_their_middle_as_well_as_is_said(of: Any, error: Any) -> None:
    assert held(white, of, error) >= 57


@pytest.mark.parametrize("draw", [alike, visited])
@pytest.mark.parametrize(("of", "error"), [(np.mean, mean_error), (np.median, median_error)])
def test_steps_that_are_like_their_neighbours_are_not_taken_for_as_many(draw: Draw, of: Any, error: Any) -> None:
    """What lasts for a good part of the run is still seen too few times: what runs differ by is known apart from it."""

    def as_if_independent(run: NDArray[np.float64]) -> float:
        return float(np.std(run) / np.sqrt(len(run)))

    assert held(draw, of, as_if_independent) <= 30
    assert held(draw, of, error) >= 45


def test_neighbours_that_are_alike_say_less_than_ones_that_are_not() -> None:
    steps = np.array([1.0] * 100 + [1.2] * 100)
    shuffled = np.random.default_rng(0).permutation(steps)
    assert (mean_error(steps) or 0.0) > 2 * (mean_error(shuffled) or 1.0)


def test_too_few_steps_know_nothing() -> None:
    few = np.array([1.0] * (FEWEST_STEPS - 1))
    assert mean_error(few) is None
    assert median_error(few) is None
    assert mean_error(np.array([1.0] * FEWEST_STEPS)) == 0.0
