"""Costs against formulas written out by hand."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

import whystall
from whystall import cost
from whystall.cost import TensorSpec, cost_of, kind_of


def t(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


FLOPS: dict[str, tuple[str, list[Any], int]] = {
    "mm": ("aten::mm", [t(8, 16), t(16, 4)], 2 * 8 * 16 * 4),
    "addmm": ("aten::addmm", [t(4), t(8, 16), t(16, 4), 1, 1], 2 * 8 * 16 * 4),
    "bmm": ("aten::bmm", [t(3, 8, 16), t(3, 16, 4)], 2 * 3 * 8 * 16 * 4),
    "baddbmm": ("aten::baddbmm", [t(3, 8, 4), t(3, 8, 16), t(3, 16, 4), 1, 1], 2 * 3 * 8 * 16 * 4),
    "addbmm": ("aten::addbmm", [t(8, 4), t(3, 8, 16), t(3, 16, 4)], 2 * 3 * 8 * 16 * 4),
    "mv": ("aten::mv", [t(8, 16), t(16)], 2 * 8 * 16),
    "addmv": ("aten::addmv", [t(8), t(8, 16), t(16)], 2 * 8 * 16),
    "dot": ("aten::dot", [t(16), t(16)], 2 * 16),
    "int_mm": ("aten::_int_mm", [t(32, 64, dtype="int8"), t(64, 16, dtype="int8")], 2 * 32 * 64 * 16),
    "scaled_mm": ("aten::_scaled_mm", [t(32, 64, dtype="float8_e4m3fn"), t(64, 16), t(), t()], 2 * 32 * 64 * 16),
    "scaled_mm fp4": (
        "aten::_scaled_mm",
        [t(32, 32, dtype="float4_e2m1fn_x2"), t(32, 16, dtype="float4_e2m1fn_x2"), t(), t()],
        2 * 32 * 64 * 16,
    ),
    "grouped rows": ("aten::_grouped_mm", [t(32, 64), t(4, 64, 128), t(4, dtype="int32")], 2 * 32 * 64 * 128),
    "grouped columns": ("aten::_grouped_mm", [t(4, 8, 64), t(64, 32), t(4, dtype="int32")], 2 * 8 * 64 * 32),
    "grouped inner": ("aten::_grouped_mm", [t(64, 32), t(32, 128), t(4, dtype="int32")], 2 * 64 * 32 * 128),
    "grouped batch": ("aten::_grouped_mm", [t(4, 8, 64), t(4, 64, 16)], 2 * 4 * 8 * 64 * 16),
    "int8 weights": ("aten::_weight_int8pack_mm", [t(8, 64), t(32, 64, dtype="int8"), t(32)], 2 * 8 * 64 * 32),
    "int4 weights": (
        "aten::_weight_int4pack_mm",  # [n / 8, k / (8 * 16), 32, 4] for an inner of 8
        [t(8, 256, dtype="bfloat16"), t(4, 2, 32, 4, dtype="int32"), 32, t(8, 32, 2)],
        2 * 8 * 256 * 32,
    ),
    "convolution": (
        "aten::convolution",
        [t(2, 8, 10, 10), t(16, 8, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1],
        2 * 2 * 16 * 8 * 9 * 100,
    ),
    "dilated, strided": (  # (10 + 2 - 2 * 2 - 1) // 2 + 1 = 4
        "aten::convolution",
        [t(2, 8, 10, 10), t(16, 8, 3, 3), None, [2, 2], [1, 1], [2, 2], False, [0, 0], 1],
        2 * 2 * 16 * 8 * 9 * 16,
    ),
    "transposed": (
        "aten::convolution",
        [t(2, 8, 10, 10), t(8, 16, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [0, 0], 1],
        2 * 2 * 8 * 16 * 9 * 100,
    ),
    "grouped 1d": (
        "aten::convolution",
        [t(2, 512, 64), t(512, 1, 4), None, [1], [3], [1], False, [0], 512],
        2 * 2 * 512 * 4 * 67,
    ),
    "cudnn": (
        "aten::cudnn_convolution",
        [t(2, 8, 10, 10), t(16, 2, 3, 3), [1, 1], [1, 1], [1, 1], 4, False, False, True],
        2 * 2 * 16 * 2 * 9 * 100,
    ),
    "grouped backward": (
        "aten::convolution_backward",
        [
            *(t(2, 64, 10, 10), t(2, 64, 10, 10), t(64, 1, 3, 3)),
            *(None, [1, 1], [1, 1], [1, 1], False, [0, 0], 64, [True, True, False]),
        ],
        2 * (2 * 2 * 64 * 9 * 100),
    ),
    "flash": ("aten::_scaled_dot_product_flash_attention", [t(2, 8, 64, 32)] * 3, 4 * 2 * 8 * 64 * 64 * 32),
    "gqa": (
        "aten::_scaled_dot_product_flash_attention",
        [t(2, 8, 64, 32), t(2, 2, 64, 32), t(2, 2, 64, 32)],
        4 * 2 * 8 * 64 * 64 * 32,
    ),
    "mla": (
        "aten::_scaled_dot_product_efficient_attention",
        [t(2, 4, 64, 48), t(2, 4, 64, 48), t(2, 4, 64, 32), None, False],
        2 * 2 * 4 * 64 * 64 * (48 + 32),
    ),
    "heads third": (
        "aten::_flash_attention_forward",
        [t(2, 64, 8, 32)] * 3 + [None, None, 64, 64, 0.0, False, False],
        4 * 2 * 8 * 64 * 64 * 32,
    ),
    "efficient heads third": (
        "aten::_efficient_attention_forward",
        [t(2, 1, 16, 32), t(2, 1024, 16, 32), t(2, 1024, 16, 32), None, None, None, 1, 1024, 0.0, 0],
        4 * 2 * 16 * 1 * 1024 * 32,
    ),
    "flash library": (
        "flash_attn::_flash_attn_forward",
        [t(2, 64, 8, 32)] * 3 + [0.0, 0.1, False],
        4 * 2 * 8 * 64 * 64 * 32,
    ),
    "cudnn lstm": (
        "aten::_cudnn_rnn",
        [
            t(10, 4, 16),
            [t(128, 16), t(128, 32), t(128), t(128)],
            *(4, None, t(1, 4, 32), t(1, 4, 32), 2, 32, 0, 1, False, 0.0, True, False, [], None),
        ],
        2 * 40 * 128 * (16 + 32),
    ),
    "quantized linear": ("quantized::linear_dynamic", [t(8, 64), "packed", False], 2 * 8 * 64 * 32),
    "bilinear": (
        "aten::_trilinear",
        [t(5, 8), t(4, 8, 16), t(5, 16), [1, 3], [0], [1, 2], [2, 3], 1],
        2 * 5 * 4 * 8 * 16 + 2 * 5 * 4 * 8,
    ),
}


@pytest.mark.parametrize("case", FLOPS, ids=lambda case: case)
def test_model_flops(case: str) -> None:
    operator, arguments, expected = FLOPS[case]
    outputs = [t(8, 32)] if operator.startswith("quantized") else None

    found = cost_of(operator, arguments, outputs=outputs)

    assert found is not None
    assert found.model_flops == expected


def test_packed_sequences_count_their_own_lengths() -> None:
    offsets = TensorSpec((4,), "int32", values=(0, 10, 30, 60))
    packed = [t(60, 8, 32)] * 3

    found = cost_of("aten::_flash_attention_forward", [*packed, offsets, offsets, 30, 30, 0.0, False, False])
    unknown = cost_of("aten::_flash_attention_forward", [*packed, t(4, dtype="int32"), t(4, dtype="int32"), 30, 30])

    assert found is not None
    assert unknown is not None
    assert found.model_flops == 4 * 8 * 32 * (10 * 10 + 20 * 20 + 30 * 30)
    assert unknown.model_flops >= 4 * 8 * 32 * 60 * 30


@pytest.mark.parametrize(("queries", "keys", "pairs"), [(64, 64, 2048), (32, 64, 512), (64, 32, 32 * 32 + 512)])
def test_causal_leaves_the_area_under_the_diagonal(queries: int, keys: int, pairs: int) -> None:
    query, key = t(2, 8, queries, 32), t(2, 8, keys, 32)

    found = cost_of("aten::_scaled_dot_product_flash_attention", [query, key, key, 0.0, True])

    assert found is not None
    assert found.model_flops == 4 * 16 * queries * keys * 32
    assert found.model_flops_causal == 4 * 16 * pairs * 32


BACKWARD = {
    "aten::_scaled_dot_product_flash_attention_backward": 11,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "aten::_scaled_dot_product_efficient_attention_backward": 11,
    "aten::_scaled_dot_product_cudnn_attention_backward": 14,
}


@pytest.mark.parametrize("operator", BACKWARD)
def test_fused_attention_recomputes_its_scores(operator: str) -> None:
    one = 2 * 16 * 64 * 64 * 32
    arguments: list[Any] = [t(2, 8, 64, 32)] * 4 + [None] * (BACKWARD[operator] - 4) + [True]

    found = cost_of(operator, arguments)

    assert found is not None
    assert (found.model_flops, found.model_flops_causal, found.executed_flops) == (4 * one, 2 * one, 5 * one)


ELEMENTWISE: dict[str, tuple[str, list[Any], int]] = {
    "add": ("aten::add", [t(8, 1), t(3, 1, 4)], 3 * 8 * 4),
    "in place": ("aten::mul_", [t(8, 4), 2.0], 32),
    "nll_loss": ("aten::nll_loss_forward", [t(8, 4), t(8, dtype="int64"), None, 1, -100], 2 * 8),
    "softmax": ("aten::_softmax", [t(8, 4), -1, False], 5 * 32 - 2 * 8),
    "layer norm": ("aten::native_layer_norm", [t(8, 4), [4], t(4), t(4), 1e-5], 7 * 32 + 2 * 8),
    "gelu": ("aten::gelu", [t(8, 4)], 5 * 32),
    "silu": ("aten::silu", [t(8, 4)], 2 * 32),
    "mean": ("aten::mean", [t(8, 4), [-1], True], 32),
    "bias": ("aten::addmm", [t(4), t(8, 16), t(16, 4)], 32),
    "foreach": ("aten::_foreach_addcmul_", [[t(8), t(4)], [t(8), t(4)], [t(8), t(4)], 0.1], 3 * 12),
    "mask": ("aten::masked_fill", [t(8, 4), t(8, 4, dtype="bool"), 0.0], 0),
    "cast": ("aten::_to_copy", [t(8, 4), 15], 0),
    "fft": ("aten::_fft_c2c", [t(4, 64, dtype="complex64"), [1], 0, True], 5 * 4 * 64 * 6),
}


@pytest.mark.parametrize("case", ELEMENTWISE, ids=lambda case: case)
def test_elementwise_operations(case: str) -> None:
    operator, arguments, expected = ELEMENTWISE[case]

    found = cost_of(operator, arguments)

    assert found is not None
    assert found.elementwise_ops == expected


BYTES: dict[str, tuple[str, list[Any], int, int]] = {
    "mm": ("aten::mm", [t(8, 16, dtype="bfloat16"), t(16, 4, dtype="bfloat16")], 2 * (128 + 64), 2 * 32),
    "cast": ("aten::_to_copy", [t(8, 4), 15], 4 * 32, 2 * 32),
    "copy": ("aten::copy_", [t(8, 4), t(8, 4, dtype="bfloat16"), False], 2 * 32, 4 * 32),
    "cat": ("aten::cat", [[t(8), t(4)], 0], 4 * 12, 4 * 12),
    "embedding": ("aten::embedding", [t(1000, 16), t(4, dtype="int64")], 4 * 64 + 32, 4 * 64),
    "fill": ("aten::zero_", [t(8)], 0, 32),
    "view": ("aten::view", [t(8, 4), [32]], 0, 0),
    "expanded": ("aten::add", [TensorSpec((8, 4), "float32", (0, 1)), t(8, 4)], 4 * (4 + 32), 4 * 32),
    "adamw": (
        "aten::_fused_adamw_",
        [[t(100)], [t(100)], [t(100)], [t(100)], [], [t()]],
        4 * 4 * 100,
        3 * 4 * 100,
    ),
}


@pytest.mark.parametrize("case", BYTES, ids=lambda case: case)
def test_bytes(case: str) -> None:
    operator, arguments, read, written = BYTES[case]

    found = cost_of(operator, arguments)

    assert found is not None
    assert (found.bytes_read, found.bytes_written) == (read, written)


def test_convolution_backward_tells_the_weights_share() -> None:
    arguments = [
        *(t(2, 16, 10, 10), t(2, 8, 10, 10), t(16, 8, 3, 3), None),
        *([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]),
    ]

    found = cost_of("aten::convolution_backward", arguments)

    assert found is not None
    assert found.model_flops == found.weight_flops == 2 * 2 * 16 * 8 * 9 * 100


def test_an_operator_without_entry_has_no_cost() -> None:
    assert cost_of("mystery::op", [t(8)]) is None
    assert kind_of("mystery::op") is None


def test_arguments_that_do_not_fit_give_no_cost() -> None:
    assert cost_of("aten::mm", [t(8, 16)]) is None
    assert cost_of("aten::convolution", [t(2, 8, 10, 10), t(16, 8, 3, 3), None]) is None


def test_registering_takes_one_line() -> None:
    cost.register("whystall_tests::product", lambda a, b: 2 * prod(a.shape) * b.shape[-1])
    try:
        found = cost_of("whystall_tests::product", [t(8, 16), t(16, 4)], outputs=[t(8, 4)])
    finally:
        cost.unregister("whystall_tests::product")

    assert found is not None
    assert (found.model_flops, found.executed_flops, found.bytes_read, found.bytes_written) == (1024, 1024, 768, 128)


def _refuses(data: TensorSpec) -> int:
    raise RuntimeError(f"no {data.dtype}")


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        (lambda a: a.numel / 3, "its formula returned float, wants a whole number"),
        (lambda a: str(a.numel), "its formula returned str, wants a whole number"),
        (lambda a: None, "its formula returned None, wants a whole number"),
        (lambda a: -a.numel, "its formula gave an amount that is negative or not whole"),
        (lambda a: cost.Work(flops=a.numel / 3), "its formula gave an amount that is negative or not whole"),
        (lambda a, b: a.numel * b.numel, "its formula raised TypeError: "),
        (_refuses, "its formula raised RuntimeError: no float32"),
    ],
)
def test_a_registered_formula_that_gives_nothing_has_a_reason(formula: Any, said: str) -> None:
    cost.register("whystall_tests::broken", formula)
    try:
        before = cost.reason("whystall_tests::broken")
        found = cost_of("whystall_tests::broken", [t(8)])
        in_place = cost_of("whystall_tests::broken_", [t(8)])
        reason = cost.reason("whystall_tests::broken")
        same = cost.reason("whystall_tests::broken_")
    finally:
        cost.unregister("whystall_tests::broken")

    assert (before, found, in_place) == (None, None, None)
    assert reason is not None
    assert reason.startswith(said)
    assert same == reason
    assert cost.reason("whystall_tests::broken") is None


def test_a_float_that_is_a_whole_number_is_taken() -> None:
    cost.register("whystall_tests::half", lambda a: a.numel / 2)
    try:
        found = cost_of("whystall_tests::half", [t(8)])
        reason = cost.reason("whystall_tests::half")
    finally:
        cost.unregister("whystall_tests::half")

    assert found is not None
    assert type(found.model_flops) is int
    assert (found.model_flops, reason) == (4, None)


def test_only_registered_formulas_have_reasons() -> None:
    assert cost_of("aten::mm", [t(8, 16)]) is None
    assert cost.reason("aten::mm") is None
    assert cost.reason("mystery::op") is None


def test_composite_operators_leave_the_work_to_their_parts() -> None:
    assert kind_of("aten::linear") == "composite"
    assert cost_of("aten::linear", [t(8, 16), t(4, 16)]) is None


def test_the_registry_is_reached_from_the_package() -> None:
    assert whystall.cost.register is cost.register


def test_a_loss_reads_one_number_of_each_row() -> None:
    """With whole rows counted as read, the roofline showed 1452 %."""
    found = cost_of("aten::nll_loss_forward", [t(4096, 128256), t(4096, dtype="int64"), None, 1, -100])
    assert found is not None
    assert found.bytes_read == 4096 * (4 + 8)


@pytest.mark.parametrize(("dims", "passes"), [([3], 1), ([2, 3], 2), ([1, 2, 3], 3)])
def test_a_transform_over_several_dimensions_makes_a_pass_for_each(dims: list[int], passes: int) -> None:
    data = TensorSpec((4, 8, 16, 32), "complex64")
    cost = cost_of("aten::_fft_c2c", [data, dims, 0, True])
    assert cost is not None
    assert cost.bytes_read == cost.bytes_written == passes * data.nbytes
