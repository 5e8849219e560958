"""Paired comparisons of times whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.analysis.paired import noise_floor, paired
from whystall.verify.measure import interleaved

TIMES = st.lists(st.floats(0.001, 1000), min_size=2, max_size=12)


@given(TIMES, st.floats(0.2, 5))
def test_a_constant_ratio_is_found_exactly(before: list[float], ratio: float) -> None:
    found = paired(before, [time / ratio for time in before])
    assert found.speedup.ratio == pytest.approx(ratio, rel=1e-3)
    assert found.speedup.low == pytest.approx(found.speedup.high, rel=1e-3)


@given(TIMES)
def test_swapping_the_variants_inverts_the_ratio(times: list[float]) -> None:
    other = [time * 1.3 for time in reversed(times)]
    assert paired(times, other).speedup.ratio == pytest.approx(1 / paired(other, times).speedup.ratio, rel=1e-3)


def test_the_same_distribution_twice_is_almost_never_an_improvement() -> None:
    """Of 200 A/A comparisons with 10 % of noise, at most a tenth may claim anything (5 % are expected)."""
    generator = np.random.default_rng(7)
    claims = 0
    for _ in range(200):
        before, after = generator.lognormal(0, 0.1, (2, 8))
        found = paired(before.tolist(), after.tolist())
        claims += found.improved or found.worsened
    assert claims <= 20


def test_a_drift_is_no_improvement_when_blocks_are_interleaved() -> None:
    """The machine becomes steadily slower, by a third in all; both variants are the same."""
    order = interleaved(8)
    times: tuple[list[float], list[float]] = ([], [])
    for place, (variant, _) in enumerate(order):
        times[variant].append(1 + place / len(order) / 3)
    found = paired(*times)
    assert not found.improved
    assert not found.worsened


def test_a_clear_improvement_is_one() -> None:
    generator = np.random.default_rng(3)
    before = generator.lognormal(0, 0.03, 8)
    after = generator.lognormal(np.log(1 / 1.5), 0.03, 8)
    found = paired(before.tolist(), after.tolist())
    assert found.improved
    assert found.speedup.low < 1.5 < found.speedup.high


def test_the_noise_floor_of_constant_times_is_none() -> None:
    assert noise_floor([[2.0] * 5, [3.0] * 5]) == 1.0
    assert noise_floor([[2.0]]) == 1.0


@pytest.mark.parametrize(("before", "after"), [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, 0.0], [1.0, 1.0])])
def test_what_cannot_be_compared(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs|above 0"):
        paired(before, after)


def test_blocks_go_abba() -> None:
    assert [variant for variant, _ in interleaved(4)] == [0, 1, 1, 0, 0, 1, 1, 0]
