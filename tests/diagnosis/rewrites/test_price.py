"""Prices of calls: the roofline of what their formulas say, and constants that each have a source."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from whystall.cost.spec import TensorSpec
from whystall.diagnosis.rewrites.price import Price

PRICE = Price(flops_per_s=1e9, bytes_per_s=1e9, call_ns=100, smaller=3, cache_bytes=0)


def test_a_product_takes_the_longer_of_its_arithmetic_and_its_bytes() -> None:
    # 2 * 100^3 operations in 2 ms; 3 matrices of 100^2 numbers of 4 bytes would take 0.12 ms
    assert PRICE.product(1, 100, 100, 100) == pytest.approx(2e6 + 100)
    # an outer product: 2 * 100^2 operations take 20 us, (100 + 100 + 100^2) * 4 bytes 40.8 us
    assert PRICE.product(1, 100, 1, 100) == pytest.approx(40_800 + 100)


def test_what_has_no_formula_has_no_price() -> None:
    with pytest.raises(ValueError, match="my::operator has no cost"):
        PRICE.ns("my::operator", TensorSpec((3,)))
    assert PRICE.of(None) == 100


def test_each_constant_says_what_it_is_and_where_it_comes_from() -> None:
    entries = tomllib.loads((files("whystall.diagnosis.rewrites") / "price.toml").read_text("utf-8"))
    assert entries.keys() == set(Price.__slots__)
    assert all(set(entry) == {"value", "is", "source"} and len(entry["source"]) > 20 for entry in entries.values())
