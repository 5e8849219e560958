from __future__ import annotations

import pytest

from whystall.live.rhythm import step_seconds


@pytest.mark.parametrize("step", [12, 30, 100])
def test_what_returns_evenly_is_a_step(step: int) -> None:
    """A quarter of each step is a backward pass, with a tick more or less."""
    kinds: list[str] = []
    for number in range(12):
        kinds += ["forward"] * (step * 3 // 4 + number % 3 - 1) + ["backward"] * (step // 4)
    found = step_seconds(kinds, 100)
    assert found == pytest.approx(step / 100, rel=0.1)


def test_what_is_too_short_to_be_seen_each_time_is_none() -> None:
    assert step_seconds(["forward", "backward"] * 200, 100) is None


def test_what_returns_without_order_is_none() -> None:
    kinds: list[str] = []
    for number in range(20):
        kinds += ["own"] * (3, 40, 200)[number % 3] + ["backward"] * (3, 170)[number // 3 % 2]
    assert step_seconds(kinds, 100) is None


def test_few_and_no_looks_have_no_rhythm() -> None:
    assert step_seconds([], 100) is None
    assert step_seconds(["a"] * 500, 100) is None
    assert step_seconds((["a"] * 50 + ["b"] * 50) * 3, 100) is None
