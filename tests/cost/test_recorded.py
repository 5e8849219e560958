"""Costs of recorded calls: the texts of real traces, and their totals."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from whystall.cost import TensorSpec, recorded_cost
from whystall.cost.recorded import parse

if TYPE_CHECKING:
    from tests.conftest import RealTraces

FLASH = "aten::_scaled_dot_product_flash_attention"
TOTALS = [
    ("qwen-0.5b-prefill-h100.json.gz", "aten::mm", 4_164_037_902_336, 4_164_037_902_336),
    ("qwen-0.5b-prefill-h100.json.gz", FLASH, 491_490_115_584, 245_745_057_792),
    ("bert-small-h100.json.gz", "aten::addmm", 8_029_194_240, 8_029_194_240),
    ("tp-decode-b200.json.gz", "aten::addmm", 235_693_670_400, 235_693_670_400),
]


@pytest.mark.real_traces
@pytest.mark.parametrize(("trace", "operator", "dense", "causal"), TOTALS, ids=lambda value: str(value)[:24])
def test_totals_of_real_traces(real_traces: RealTraces, trace: str, operator: str, dense: int, causal: int) -> None:
    calls = real_traces.load(trace).operators
    columns = ["name", "input_dims", "input_types", "concrete_inputs", "input_strides"]
    total: Counter[str] = Counter()

    for name, dims, types, concrete, strides, count in calls.group_by(columns).len().rows():
        if name == operator:
            found = recorded_cost(name, dims, types, concrete, strides)
            assert found is not None
            total.update(dense=count * found.model_flops, causal=count * found.model_flops_causal)

    assert (total["dense"], total["causal"]) == (dense, causal)


def test_scalars_and_lists_of_tensors() -> None:
    dims = "[[[1, 559, 32], [1, 559, 32]], []]"

    assert parse(dims, '["TensorList", "Scalar"]', '["", "-1"]') == [
        [TensorSpec((1, 559, 32), "unknown"), TensorSpec((1, 559, 32), "unknown")],
        -1,
    ]


def test_zero_dimensional_tensors_are_told_from_scalars() -> None:
    assert parse("[[1, 559, 64], []]", '["float", "double"]', '["", ""]') == [
        TensorSpec((1, 559, 64)),
        TensorSpec((), "float64"),
    ]
    assert parse("[[8], []]", '["float", ""]', '["", ""]') == [TensorSpec((8,)), None]


def test_a_dtype_of_unknown_size_costs_no_known_bytes() -> None:
    found = recorded_cost("aten::cat", "[[[4, 8], [4, 8]], []]", '["TensorList", "Scalar"]', '["", "0"]')

    assert found is not None
    assert found.bytes_read is None


@pytest.mark.parametrize("dims", [None, "", "[", "{}", "null"])
def test_what_was_not_recorded_has_no_cost(dims: str | None) -> None:
    assert recorded_cost("aten::mm", dims, '["float"]') is None


def test_a_list_of_numbers_cut_off_gives_no_cost() -> None:
    dims, types = "[[2, 8, 10, 10], [16, 8, 3, 3], [], [], [], [], [], [], []]", '["float", "float"]'

    assert recorded_cost("aten::convolution", dims, types) is None


@pytest.mark.parametrize(
    "dims",
    ["[[NaN, 2], [2, 2]]", "[[1.5, 2], [2, 2]]", "[[-1, 2], [2, 2]]", '[["8", 2], [2, 2]]', "[[true, 2], [2, 2]]",
     "[[9223372036854775808, 2], [2, 2]]", "[[Infinity, 2], [2, 2]]", "[[[[1]]], [2, 2]]", "[" * 100_000],
)  # fmt: skip
def test_what_are_no_dimensions_have_no_cost(dims: str) -> None:
    """Found by fuzzing: numbers of another kind where sizes belong."""
    assert recorded_cost("aten::mm", dims, '["float", "float"]') is None


@pytest.mark.parametrize("types", ["[[], {}]", "[null, 5]", '["float"]', "[]"])
def test_types_of_the_wrong_shape_are_unknown(types: str) -> None:
    found = recorded_cost("aten::mm", "[[8, 16], [16, 4]]", types)

    assert found is not None
    assert found.model_flops == 1024
    assert found.bytes_read is None


@pytest.mark.parametrize("concrete", ["[" + '"' + "[" * 5_000 + "]" * 5_000 + '"]', '["nan", "inf"]', '["1e400", ""]'])
def test_values_that_fit_no_formula_do_no_harm(concrete: str) -> None:
    for operator in ("aten::mm", "aten::convolution", "aten::mean", "aten::cat"):
        recorded_cost(operator, "[[8, 16], []]", '["float", "Scalar"]', concrete)


@pytest.mark.parametrize("places", ["[]", "[[120000]]"])
def test_rows_that_are_put_have_bytes_whatever_is_recorded_of_the_indices(places: str) -> None:
    """A list of tensors has no dtypes; torch 2.11 records nothing at all of a list of optional ones."""
    dims, kind = f"[[64, 32], {places}, [120000, 32], [], []]", '["float", "TensorList", "float", "Scalar", "Scalar"]'
    cost = recorded_cost("aten::_index_put_impl_", dims, kind, '["", "", "", "True", "True"]')
    assert cost is not None
    indices = 120_000 * 8 if places != "[]" else 0
    assert cost.bytes_read == 64 * 32 * 4 + 120_000 * 32 * 4 + indices
