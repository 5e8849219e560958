"""What products of a step are given, of recordings built by hand."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.analysis.batches import given_rows
from whystall.analysis.work_results import GivenRows
from whystall.testing import TraceBuilder, trace

SHAPES: dict[str, Any] = {"Input Dims": [[16, 8], [8, 4]]}


def recorded(*calls: tuple[str, Any], steps: int = 4) -> TraceBuilder:
    """Steps in which these operators are called with inputs of these shapes."""
    built = trace()
    for number in range(steps):
        at = number * 1_000_000
        built.step(number, at=at, lasts=900_000)
        for place, (name, dims) in enumerate(calls):
            built.operator(name, at=at + 10_000 * place, lasts=5_000, **{"Input Dims": dims})
    return built


@pytest.mark.parametrize(
    ("name", "dims", "weights"),
    [
        ("aten::linear", [[32, 7, 256], [512, 256], [512]], [512, 256]),
        ("aten::addmm", [[512], [32, 256], [256, 512], [], []], [256, 512]),
        ("aten::mm", [[32, 256], [256, 512]], [256, 512]),
        ("aten::conv2d", [[32, 3, 224, 224], [64, 3, 7, 7], [64], [], [], [], []], [64, 3, 7, 7]),
    ],
)
def test_rows_are_the_first_size_of_the_input(name: str, dims: Any, weights: list[int]) -> None:
    found = given_rows(recorded((name, dims), (name, dims)).load())
    assert found == [GivenRows(operator=name, weights=weights, rows=32, calls=2)]


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::conv2d", [[3, 224, 224], [64, 3, 7, 7]]),  # without a batch
        ("aten::linear", [[256], [512, 256]]),
        ("aten::linear", [[32, 256]]),
        ("aten::linear", [[0, 256], [512, 256]]),
        ("aten::embedding", [[1000, 64], [64]]),  # positions, as many whatever the batch
        ("aten::cat", [[[32, 256], [32, 256]], []]),
    ],
)
def test_what_tells_no_rows(name: str, dims: Any) -> None:
    assert given_rows(recorded((name, dims)).load()) == []


def test_calls_that_differ_say_nothing_of_a_batch() -> None:
    either: list[tuple[str, Any]] = [("aten::mm", [[rows, 8], [8, 4]]) for rows in (16, 32)]
    assert given_rows(recorded(*either).load()) == []
    # A product of one of four steps is none of the usual step's.
    once = recorded(("aten::mm", [[16, 8], [8, 4]])).operator("aten::mm", at=500_000, lasts=1_000, **SHAPES)
    assert given_rows(once.load()) == []


def test_without_steps_or_shapes_nothing_is_known() -> None:
    assert given_rows(trace().operator("aten::mm", at=0, lasts=10, **SHAPES).load()) == []
    assert given_rows(trace().operator("aten::mm", at=0, lasts=10).step(0, at=0, lasts=20).load()) == []
