"""The largest batch that fits is the one that trying all of them finds, in few predictions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.errors import UsageError
from whystall.model.prediction.largest import MOST, largest_batch
from whystall.model.prediction.predict import predict
from whystall.model.prediction.results import BatchPeak
from whystall.model.prediction.simulator import Simulator

A100 = "NVIDIA A100-SXM4-40GB"
lines = st.lists(st.tuples(st.integers(0, 10**11), st.integers(1, 10**9)), min_size=1, max_size=3)


def of_phases(phases: list[tuple[int, int]], capacity: int, rounding: int) -> tuple[dict[int, int], object]:
    """A step whose fullest phase holds what is there anyway and so much for each sample, rounded as allocators do."""
    asked: dict[int, int] = {}

    def predicted(batch: int) -> BatchPeak:
        peak = max(base + -(-each * batch // rounding) * rounding for base, each in phases)
        asked[batch] = peak
        return BatchPeak(batch=batch, peak_bytes=peak, spare_bytes=capacity - peak, least_ns=None)

    return asked, predicted


@given(most=st.integers(1, 40), capacity=st.integers(0, 60))
def test_no_batch_beyond_the_most_is_asked_for(most: int, capacity: int) -> None:
    asked, predicted = of_phases([(1, 1)], capacity, 1)
    _, largest = largest_batch(predicted, most)  # type: ignore[arg-type]
    assert max(asked) <= most
    assert (largest or 0) == max(min(most, capacity - 1), 0)


@given(phases=lines, capacity=st.integers(0, 2 * 10**11), rounding=st.sampled_from([1, 512, 2**21]))
def test_the_largest_fits_and_one_more_does_not(phases: list[tuple[int, int]], capacity: int, rounding: int) -> None:
    asked, predicted = of_phases(phases, capacity, rounding)
    try:
        tried, largest = largest_batch(predicted)  # type: ignore[arg-type]
    except UsageError:
        assert len(set(asked.values())) == 1
        return
    assert [one.batch for one in tried] == sorted(asked)
    assert len(asked) <= 12 + 21  # lines, then halves of a million
    if largest is None:
        assert asked[1] > capacity
    else:
        assert asked[largest] <= capacity
        assert largest == MOST or asked[largest + 1] > capacity


def test_where_memory_grows_in_proportion_a_handful_of_predictions_finds_it() -> None:
    asked, predicted = of_phases([(20 * 10**9, 3 * 10**8), (45 * 10**9, 10**8)], 80 * 10**9, 512)
    _, largest = largest_batch(predicted)  # type: ignore[arg-type]
    assert largest == 200  # (80 - 20) / 0.3, and 200 * 3e8 is a multiple of 512
    assert len(asked) <= 6


def test_a_batch_that_makes_no_difference_is_said() -> None:
    with pytest.raises(UsageError, match="makes no difference"):
        largest_batch(lambda batch: BatchPeak(batch=batch, peak_bytes=5, spare_bytes=1, least_ns=None))


def test_the_prediction_is_that_of_the_largest_batch(simulator: Simulator, models: str) -> None:
    """One sample more is predicted not to fit, by itself."""
    options = {"device": A100, "simulator": simulator}
    found = predict(f"{models}:deep", batch="max", **options)  # type: ignore[arg-type]
    largest = found.request.batch
    assert largest is not None
    assert found.fit is not None
    assert found.fit.fits
    more = predict(f"{models}:deep", batch=largest + 1, remedies=False, **options)  # type: ignore[arg-type]
    assert more.fit is not None
    assert not more.fit.fits
    assert max(one.batch for one in found.batches if one.fits) == largest


def test_a_limit_stands_for_a_device(simulator: Simulator, models: str) -> None:
    limit = 24 << 20
    found = predict(f"{models}:deep", batch="max", limit_bytes=limit, simulator=simulator)
    assert found.request.batch is not None
    more = predict(f"{models}:deep", batch=found.request.batch + 1, simulator=simulator)
    assert found.peak_bytes <= limit < more.peak_bytes


def test_a_limit_above_what_the_device_has_changes_nothing(simulator: Simulator, models: str) -> None:
    options = {"device": A100, "simulator": simulator}
    plain = predict(f"{models}:deep", **options)  # type: ignore[arg-type]
    high = predict(f"{models}:deep", limit_bytes=1 << 50, **options)  # type: ignore[arg-type]
    low = predict(f"{models}:deep", limit_bytes=plain.peak_bytes - 1, remedies=False, **options)  # type: ignore[arg-type]
    assert high.fit == plain.fit
    assert low.fit is not None
    assert (low.fit.spare_bytes, low.fit.limited, low.fit.fits) == (-1, True, False)


def test_an_effective_batch_is_made_of_whole_batches_whose_gradients_wait(simulator: Simulator, models: str) -> None:
    """The gradients that are kept count: 4 B a parameter in the forward pass, which has none else."""
    limit = 24 << 20
    options = {"limit_bytes": limit, "simulator": simulator, "remedies": False}
    found = predict(f"{models}:deep", batch="max", effective_batch=60, **options)  # type: ignore[arg-type]
    batch = found.request.batch
    assert batch is not None
    assert 60 % batch == 0
    assert found.request.accumulated == 60 // batch > 1
    assert found.phase("forward").held["gradients"] == 4 * found.parameters
    divisors = (1, 2, 3, 4, 5, 6, 10, 12, 15)
    fitting = [predict(f"{models}:deep", batch=one, effective_batch=60, **options) for one in divisors]  # type: ignore[arg-type]
    assert batch == max(one.request.batch or 0 for one in fitting if one.peak_bytes <= limit)


def test_an_effective_batch_that_fits_whole_is_not_accumulated(simulator: Simulator, models: str) -> None:
    found = predict(f"{models}:deep", batch="max", effective_batch=6, limit_bytes=1 << 30, simulator=simulator)
    assert (found.request.batch, found.request.accumulated) == (6, 1)
    assert "gradients" not in found.phase("forward").held


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effective_batch": 7, "ranks": 2, "strategy": "ddp"}, "cannot be shared by 2 ranks"),
        ({"effective_batch": 7, "batch": 2}, "no whole number of batches of 2"),
        ({"limit_bytes": 0}, "at least 1"),
    ],
)
def test_effective_batches_and_limits_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        predict("models.py:deep", **options)


def test_a_largest_batch_needs_a_device_with_a_size(simulator: Simulator, models: str) -> None:
    with pytest.raises(UsageError, match="name it by --device"):
        predict(f"{models}:deep", batch="max", simulator=simulator)
