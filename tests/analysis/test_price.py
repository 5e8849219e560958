"""The bill of a job: devices times hours times rate, shared out so that the parts add up to the cent."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.analysis.price import Rate, parse_rate, price_of
from whystall.analysis.whole_job import JobPart, WholeJob
from whystall.errors import UsageError

HOUR = 3_600_000_000_000


def job(*ns: int) -> WholeJob:
    parts = [JobPart(part="steps", ns=one) for one in ns]
    return WholeJob(rank=0, wall_ns=sum(ns), parts=parts, first_step_ns=None)


def test_eight_devices_for_an_hour_and_a_half() -> None:
    """8 * 1.5 h * 2.80 = 33.60, by hand; a third of the time is 11.20."""
    found = price_of(job(HOUR // 2, HOUR), 8, Rate(per_gpu_hour=2.8, currency="EUR"))
    assert (found.gpu_hours, found.cents) == (12.0, 3360)
    assert [one.cents for one in found.parts] == [1120, 2240]


def test_without_a_rate_there_are_hours_alone() -> None:
    found = price_of(job(HOUR), 2, None)
    assert (found.gpu_hours, found.cents, found.parts[0].cents) == (2.0, None, None)


@given(st.lists(st.integers(0, 1 << 60), max_size=12), st.integers(1, 10_000), st.floats(0, 100))
def test_cents_add_up_and_each_is_within_one_of_its_share(ns: list[int], devices: int, rate: float) -> None:
    found = price_of(job(*ns), devices, Rate(per_gpu_hour=rate))
    assert found.cents is not None
    if not sum(ns):
        return
    shares = [one.cents for one in found.parts]
    assert sum(one for one in shares if one is not None) == found.cents
    for one, part in zip(shares, ns, strict=True):
        assert one is not None
        assert abs(one - Fraction(found.cents * part, sum(ns))) < 1


@pytest.mark.parametrize("text", ["", "-1", "two", "2.8 dollars", "1e9", "inf", "nan", "9999999"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no rate"):
        parse_rate(text)
