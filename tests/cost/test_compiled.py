"""Names of compiled kernels, taken apart; names as `torch._inductor.utils.get_fused_kernel_name` makes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.cost import recorded_cost
from whystall.cost.compiled import fused_name
from whystall.cost.registry import known_operators

OPERATORS = [
    "_softmax", "_softmax_backward_data", "_to_copy", "_unsafe_view", "add", "addmm", "bitwise_and", "bitwise_not",
        "cat",
    "clone", "convolution", "convolution_backward", "div", "embedding", "embedding_dense_backward", "exp", "gelu",
    "gelu_backward", "index", "index_put", "mean", "mul", "native_dropout", "native_layer_norm",
    "native_layer_norm_backward", "pow", "relu", "rsqrt", "scalar_tensor", "sigmoid", "silu", "slice", "slice_backward",
    "sum", "threshold_backward", "view", "where",
]  # fmt: skip


@given(st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=12, unique=True), st.integers(0, 999))
def test_what_is_joined_is_taken_apart(operators: list[str], number: int) -> None:
    joined = "_".join(sorted(operators))
    found = fused_name(f"triton_poi_fused_{joined}_{number}", known_operators())
    assert found is not None
    assert found.unknown == ()
    assert "_".join(found.operators) == joined
    assert set(found.operators) == set(operators)


@pytest.mark.parametrize(
    ("name", "category", "operators", "unknown"),
    [
        ("triton_tem_fused_addmm_relu_5", "template", ("addmm", "relu"), ()),
        ("triton_per_fused__to_copy_mean_pow_12", "persistent reduction", ("_to_copy", "mean", "pow"), ()),
        ("cpp_fused_gelu_native_layer_norm_1", "C++", ("gelu", "native_layer_norm"), ()),
        ("model_triton_red_fused_sum_0", "reduction", ("sum",), ()),
        ("triton_poi_fused_0", "pointwise", (), ()),
        ("triton_poi_fused_add_secret_2", "pointwise", ("add",), ("secret",)),
    ],
)
def test_categories_and_strangers(
    name: str, category: str, operators: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    found = fused_name(name, known_operators())
    assert found is not None
    assert (found.category, found.operators, found.unknown) == (category, operators, unknown)


@pytest.mark.parametrize("name", ["triton_", "aten::_fused_dropout", "fused_add_rms_norm", "triton_poi_fused_add", ""])
def test_other_names_are_left_alone(name: str) -> None:
    assert fused_name(name, known_operators()) is None


def test_a_name_of_many_underscores_takes_no_time() -> None:
    assert fused_name("triton_poi_fused_" + "a_" * 100_000 + "1", known_operators()) is None


def test_a_fused_kernel_moves_its_arguments_and_has_no_model_flops() -> None:
    cost = recorded_cost("triton_poi_fused_add_mul_0", "[[888], [888], []]", '["float", "c10::BFloat16", "Scalar"]')
    assert cost is not None
    assert (cost.kind, cost.model_flops, cost.bytes_read, cost.bytes_written) == ("fused", 0, 888 * 6, 0)


@pytest.mark.parametrize(
    ("name", "dims", "flops"),
    [
        ("triton_tem_fused_mm_0", "[[64, 128], [128, 256], [64, 256]]", 2 * 64 * 128 * 256),
        ("triton_tem_fused_addmm_relu_1", "[[256], [64, 128], [128, 256], [64, 256]]", 2 * 64 * 128 * 256),
        ("triton_tem_fused_bmm_2", "[[8, 64, 32], [8, 32, 16], [8, 64, 16]]", 2 * 8 * 64 * 32 * 16),
        ("triton_tem_fused_add_mm_mul_3", "[[64, 64], [64, 64], [64, 64], [64, 64]]", 2 * 64**3),
        # a residual of the result's shape is no factor
        ("triton_tem_fused_add_mm_4", "[[64, 128], [128, 256], [64, 256], [64, 256]]", 2 * 64 * 128 * 256),
    ],
)
def test_a_fused_product_has_the_flops_that_its_shapes_allow(name: str, dims: str, flops: int) -> None:
    types = str(["float"] * dims.count("], [") + ["float"]).replace("'", '"')
    cost = recorded_cost(name, dims, types)
    assert cost is not None
    assert (cost.model_flops, cost.kind) == (flops, "matrix")


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("triton_tem_fused_mm_0", "[[64, 128], [128, 256]]"),  # no result
        ("triton_tem_fused_bmm_mm_0", "[[64, 128], [128, 256], [64, 256]]"),  # two products in one
        ("triton_tem_fused_convolution_0", "[[64, 128], [128, 256], [64, 256]]"),
        ("triton_red_fused_mm_0", "[[64, 128], [128, 256], [64, 256]]"),  # taken apart: there may be several
        # two products are possible: 8 x 4 by 4 x 8, and 4 x 8 by 8 x 4
        ("triton_tem_fused_mm_0", "[[8, 4], [4, 8], [8, 8], [4, 4]]"),
    ],
)
def test_where_the_shapes_allow_none_or_several_products_nothing_is_claimed(name: str, dims: str) -> None:
    types = str(["float"] * dims.count("], [") + ["float"]).replace("'", '"')
    assert recorded_cost(name, dims, types) is None


@pytest.mark.parametrize("name", ["triton_tem_fused_mm_0", "triton_poi_fused_mm_mul_0", "triton_poi_fused_mystery_0"])
def test_what_may_hold_a_product_is_not_covered(name: str) -> None:
    assert recorded_cost(name, "[[888], [888]]", '["float", "float"]') is None


def test_what_reads_a_part_of_its_arguments_has_no_bytes() -> None:
    cost = recorded_cost("triton_poi_fused_add_embedding_0", "[[50000, 64], [8]]", '["float", "long int"]')
    assert cost is not None
    assert cost.bytes_read is None


def test_operators_of_pytorch_whose_names_say_fused_keep_their_formulas() -> None:
    types = '["float", "ScalarList", "float", "Scalar"]'
    cost = recorded_cost("aten::_fused_rms_norm", "[[8, 64], [], [64], []]", types, '["", "[64]", "", "1e-6"]')
    assert cost is not None
    assert cost.kind == "normalisation"
