from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whystall.report import format as fmt

SCALES: dict[str, int] = {"ns": 1, "µs": 10**3, "ms": 10**6, "s": 10**9, "B": 1} | {
    f"{p}iB": 2 ** (10 * i) for i, p in enumerate("KMGTP", 1)
}


def value_of(text: str) -> float:
    number, unit = text.replace(",", "").split(" ")
    return float(number) * SCALES[unit]


def digits_of(text: str) -> int:
    return len(text.split(" ", maxsplit=1)[0].replace(".", "").replace(",", "").lstrip("0"))


@given(st.integers(0, 10**18))
def test_a_duration_is_read_back_within_three_digits(ns: int) -> None:
    assert abs(value_of(fmt.duration(ns)) - ns) <= ns * 0.00501


@given(st.integers(0, 2**59))
def test_a_size_is_read_back_within_three_digits(n_bytes: int) -> None:
    assert abs(value_of(fmt.size(n_bytes)) - n_bytes) <= n_bytes * 0.00501


@given(st.integers(1000, 999 * 10**9))
def test_a_duration_has_three_significant_digits(ns: int) -> None:
    assert digits_of(fmt.duration(ns)) == 3


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_a_longer_duration_never_reads_as_shorter(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert value_of(fmt.duration(low)) <= value_of(fmt.duration(high))


def test_durations_round_into_the_next_unit() -> None:
    assert fmt.duration(999_499) == "999 µs"
    assert fmt.duration(999_501) == "1.00 ms"
    assert fmt.duration(9_996_000) == "10.0 ms"
    assert fmt.duration(-1500) == "-1.50 µs"


@given(st.lists(st.integers(0, 10**12), max_size=14))
def test_shown_shares_add_up_to_one_hundred_percent(parts: list[int]) -> None:
    tenths = fmt.tenths(parts)
    assert sum(tenths) == (1000 if any(parts) else 0)
    whole = sum(parts)
    assert all(abs(shown - part * 1000 / whole) < 1 for shown, part in zip(tenths, parts, strict=True) if whole)


def test_what_is_not_known_is_never_zero() -> None:
    formatted = (fmt.duration(None), fmt.size(None), fmt.count(None), fmt.share(None), fmt.rate(None, "B/s"))
    assert set(formatted) == {fmt.UNKNOWN}
    assert fmt.rate(float("inf"), "B/s") == fmt.rate(float("nan"), "B/s") == fmt.UNKNOWN


def test_a_share_that_rounds_to_nothing_is_told_from_none() -> None:
    assert (fmt.share(0.0), fmt.share(1e-9), fmt.share(1.0)) == ("0.0 %", "<0.1 %", "100.0 %")


def test_rates_are_in_si_units() -> None:
    assert (fmt.rate(0.0, "FLOP"), fmt.rate(1.5e12, "FLOP/s"), fmt.rate(2e9, "B/s")) == (
        "0 FLOP",
        "1.50 TFLOP/s",
        "2.00 GB/s",
    )
