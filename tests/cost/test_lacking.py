"""Recorded calls lack values: older recordings hold shapes alone. No formula ends an analysis over that."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from whystall.cost.registry import cost_of, known_operators
from whystall.cost.spec import Argument, TensorSpec

SHAPES: Final = [(), (4,), (4, 6), (2, 3, 8), (2, 3, 8, 8), (2, 3, 4, 8, 8)]


@pytest.mark.parametrize("operator", sorted(known_operators()))
def test_a_call_without_values_has_a_cost_or_none(operator: str) -> None:
    for shape, count, rest in product(SHAPES, (1, 2, 3, 5), (0, 6)):
        tensors: list[Argument] = [TensorSpec(shape)] * count
        cost_of(f"aten::{operator}", [*tensors, *[None] * rest])
        cost_of(f"aten::{operator}", [tensors, *tensors])
