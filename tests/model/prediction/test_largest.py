"""The largest batch that fits is the one that trying all of them finds, in few predictions."""

from __future__ import annotations

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


def test_a_largest_batch_needs_a_device_with_a_size(simulator: Simulator, models: str) -> None:
    with pytest.raises(UsageError, match="name it by --device"):
        predict(f"{models}:deep", batch="max", simulator=simulator)
