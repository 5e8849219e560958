"""What runs of one job differ by, against draws whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from whystall.analysis.paired import half_width, paired
from whystall.analysis.run_noise import RunNoise, middle, run_noise


def test_the_spread_is_that_of_the_logs_of_lengths() -> None:
    lengths = np.exp(np.array([-0.02, 0.0, 0.02])) * 5e6
    assert run_noise(lengths.tolist()) == RunNoise(runs=3, spread=0.02)
    assert middle(lengths.tolist()) == pytest.approx(5e6)
    assert run_noise([5.0]) is None


@pytest.mark.parametrize(("runs", "further"), [(2, 1), (3, 1), (8, 1), (8, 4)])
def test_a_further_run_lies_within_the_least_change_as_often_as_is_said(runs: int, further: int) -> None:
    """Of runs of the same job, 95 % are called no change: the least change is an interval of prediction."""
    generator = np.random.default_rng(1)
    inside = 0
    for _ in range(2_000):
        drawn = generator.lognormal(0, 0.03, runs + further)
        noise = run_noise(drawn[:runs].tolist())
        assert noise is not None
        change = abs(np.log(middle(drawn[runs:].tolist()) / middle(drawn[:runs].tolist())))
        inside += bool(change <= np.log1p(noise.least_change(further)))
    assert inside / 2_000 == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("change", [0.02, 0.05])
def test_so_many_pairs_tell_the_change_about_every_second_time_and_half_as_many_seldom(change: float) -> None:
    noise = RunNoise(runs=8, spread=0.025)
    pairs = noise.pairs_for(change)
    assert pairs is not None

    def found(count: int) -> float:
        generator = np.random.default_rng(2)
        told = 0
        for _ in range(300):
            base, candidate = generator.lognormal(0, noise.spread, (2, count))
            interval = paired(base.tolist(), (candidate * (1 + change)).tolist()).speedup
            told += interval.high < 1
        return told / 300

    assert 0.4 <= found(pairs) <= 0.85
    assert found(max(pairs // 2, 2)) < 0.45


def test_more_pairs_make_a_narrower_interval() -> None:
    widths = [half_width(pairs) for pairs in (2, 3, 5, 8, 16, 64)]
    assert widths == sorted(widths, reverse=True)
    # Of many, Student's: 1.96 standard errors, 2.3 % wider for ranks in place of values (efficiency 3 / pi).
    assert half_width(64) == pytest.approx(1.998 / 8 * (np.pi / 3) ** 0.5, rel=0.03)
    # Of two, the average distance of two normal numbers from their middle, times Student's 12.706 / sqrt(2).
    assert half_width(2) == pytest.approx(12.706 / 2**0.5 * (2 / np.pi) ** 0.5, rel=0.1)
