"""Costs of what training runs beside products: losses, resampling, solves, optimizer steps.

Values written out by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from whystall import FlopCounter
from whystall.cost import TensorSpec, cost_of, kind_of, recorded_cost

if TYPE_CHECKING:
    from collections.abc import Callable


def t(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


INDICES = t(12, dtype="int64")
BAGS = t(4, dtype="int64")
BAG = [t(4, 16), INDICES, BAGS, INDICES, BAGS, BAGS]

OPS: dict[str, tuple[str, list[Any], int]] = {
    "with logits": ("aten::binary_cross_entropy_with_logits", [t(8, 4), t(8, 4)], 6 * 32),
    "with logits, weighed": (
        "aten::binary_cross_entropy_with_logits",
        [t(8, 4), t(8, 4), t(4), t(4), 0],
        (6 + 1 + 4) * 32,
    ),
    "huber backward": ("aten::huber_loss_backward", [t(), t(8, 4), t(8, 4), 1, 1.0], 3 * 32),
    "smooth l1 backward": ("aten::smooth_l1_loss_backward", [t(), t(8, 4), t(8, 4), 1, 1.0], 3 * 32),
    "soft margin": ("aten::soft_margin_loss", [t(8, 4), t(8, 4), 1], 5 * 32),
    "multi margin backward": ("aten::multi_margin_loss_backward", [t(), t(8, 4), t(8, dtype="int64"), 1, 1], 3 * 32),
    # 12 steps with 3 labels and 20 with 5: 12 x 7 + 20 x 11 places
    "ctc": ("aten::_ctc_loss", [t(20, 2, 30), t(2, 5, dtype="int64"), [12, 20], [3, 5]], 11 * 304),
    "ctc, lengths in tensors": (
        "aten::_ctc_loss",
        [t(20, 2, 30), t(2, 5, dtype="int64"), t(2, dtype="int64"), t(2, dtype="int64")],
        11 * 20 * 2 * 11,
    ),
    "ctc backward": (
        "aten::_ctc_loss_backward",
        [t(2), t(20, 2, 30), t(2, 5, dtype="int64"), [12, 20], [3, 5], t(2), t(2, 20, 11), 0],
        19 * 304 + 6 * 20 * 2 * 30,
    ),
    "bag backward": ("aten::_embedding_bag_backward", [*BAG, 100, False, 0, False, None, -1], 12 * 16),
    "bag dense backward": (
        "aten::_embedding_bag_dense_backward",
        [t(4, 16), INDICES, INDICES, BAGS, BAGS, 100, False, 0, None, -1],
        12 * 16,
    ),
    "bag weights backward": (
        "aten::_embedding_bag_per_sample_weights_backward",
        [t(4, 16), t(100, 16), INDICES, BAGS, INDICES, 0, -1],
        2 * 12 * 16,
    ),
    "max pool backward": (
        "aten::max_pool2d_with_indices_backward",
        [t(2, 3, 4, 4), t(2, 3, 8, 8), [2, 2], [2, 2], [0, 0], [1, 1], False, t(2, 3, 4, 4, dtype="int64")],
        96,
    ),
    "adaptive pool 2d": (
        "aten::adaptive_max_pool2d_backward",
        [t(2, 3, 4, 4), t(2, 3, 8, 8), t(2, 3, 4, 4, dtype="int64")],
        96,
    ),
    "adaptive pool 3d": (
        "aten::adaptive_max_pool3d_backward",
        [t(2, 3, 2, 2, 2), t(2, 3, 4, 4, 4), t(2, 3, 2, 2, 2, dtype="int64")],
        48,
    ),
    "linear": ("aten::upsample_linear1d", [t(2, 3, 8), [16], False], 2 * 2 * 96),
    "bilinear": ("aten::upsample_bilinear2d", [t(2, 3, 4, 4), [8, 8], False], 2 * 4 * 384),
    "bilinear, by factors": ("aten::upsample_bilinear2d", [t(2, 3, 4, 4), None, False, [2.0, 2.0]], 2 * 4 * 384),
    "bicubic": ("aten::upsample_bicubic2d", [t(2, 3, 4, 4), [8, 8], False], 2 * 16 * 384),
    "trilinear": ("aten::upsample_trilinear3d", [t(1, 1, 2, 2, 2), [4, 4, 4], False], 2 * 8 * 64),
    "nearest": ("aten::upsample_nearest2d", [t(2, 3, 4, 4), [8, 8]], 0),
    "linear backward": ("aten::upsample_linear1d_backward", [t(2, 3, 16), [16], [2, 3, 8], False], 2 * 2 * 96),
    "trilinear backward": (
        "aten::upsample_trilinear3d_backward",
        [t(1, 1, 4, 4, 4), [4, 4, 4], [1, 1, 2, 2, 2], False],
        2 * 8 * 64,
    ),
    "nearest backward": ("aten::upsample_nearest1d_backward", [t(2, 3, 16), [16], [2, 3, 8]], 96),
    "nearest exact backward": (
        "aten::_upsample_nearest_exact3d_backward",
        [t(1, 1, 4, 4, 4), [4, 4, 4], [1, 1, 2, 2, 2]],
        64,
    ),
    # 8 x 4 results of 4 elements each across, then 4 x 4 down: two operations for each element
    "antialiased, half": ("aten::_upsample_bilinear2d_aa", [t(1, 3, 8, 8), [4, 4], False], 3 * 2 * (32 * 4 + 16 * 4)),
    "antialiased, double": (
        "aten::_upsample_bicubic2d_aa",
        [t(1, 3, 4, 4), [8, 8], False],
        3 * 2 * (4 * 8 * 4 + 8 * 8 * 4),
    ),
    "antialiased backward": (
        "aten::_upsample_bilinear2d_aa_backward",
        [t(1, 3, 4, 4), [4, 4], [1, 3, 8, 8], False],
        3 * 2 * (32 * 4 + 16 * 4),
    ),
    "grid": ("aten::grid_sampler_2d", [t(2, 3, 8, 8), t(2, 5, 5, 2), 0, 0, False], 2 * 4 * 150),
    "grid, nearest": ("aten::grid_sampler_2d", [t(2, 3, 8, 8), t(2, 5, 5, 2), 1, 0, False], 0),
    "grid, bicubic": ("aten::grid_sampler_2d", [t(2, 3, 8, 8), t(2, 5, 5, 2), 2, 0, False], 2 * 16 * 150),
    "grid 3d": ("aten::grid_sampler_3d", [t(2, 3, 4, 4, 4), t(2, 5, 5, 5, 3), 0, 0, False], 2 * 8 * 750),
    "grid backward": (
        "aten::grid_sampler_2d_backward",
        [t(2, 3, 5, 5), t(2, 3, 8, 8), t(2, 5, 5, 2), 0, 0, False, [True, True]],
        (1 + 2) * 2 * 4 * 150,
    ),
    "grid backward of its input": (
        "aten::grid_sampler_3d_backward",
        [t(2, 3, 5, 5, 5), t(2, 3, 4, 4, 4), t(2, 5, 5, 5, 3), 0, 0, False, [True, False]],
        2 * 8 * 750,
    ),
    "outer product": ("aten::addr", [t(8, 4), t(8), t(4)], 2 * 32),
    "distances backward": ("aten::_cdist_backward", [t(5, 7), t(5, 4), t(7, 4), 2.0, t(5, 7)], 4 * 5 * 7 * 4),
    "pairs": ("aten::_pdist_forward", [t(6, 4), 2.0], 3 * 15 * 4),
    "pairs backward": ("aten::_pdist_backward", [t(15), t(6, 4), 2.0, t(15)], 5 * 15 * 4),
    "unscale": ("aten::_amp_foreach_non_finite_check_and_unscale_", [[t(8), t(4)], t(1), t(1)], 12),
    "norms": ("aten::_foreach_norm", [[t(8), t(4)], 2], 2 * 12),
    # together with `batch_norm_elemt` the 7 N + 2 C of a batch normalisation
    "batch moments": ("aten::batch_norm_stats", [t(2, 4, 3, 3), 1e-5], 4 * 72 + 2 * 4),
    "batch applied": ("aten::batch_norm_elemt", [t(2, 4, 3, 3), t(4), t(4), t(4), t(4), 1e-5], 4 * 72),
    "batch backward sums": (
        "aten::batch_norm_backward_reduce",
        [t(2, 4, 3, 3), t(2, 4, 3, 3), t(4), t(4), t(4), True, True, True],
        4 * 72,
    ),
    "batch backward": (
        "aten::batch_norm_backward_elemt",
        [t(2, 4, 3, 3), t(2, 4, 3, 3), t(4), t(4), t(4), t(4), t(4), t(1, dtype="int32")],
        7 * 72,
    ),
    # of a unit: 4 sums, 4 activations, 3 for the state, tanh and a product; two biases of 4 gates
    "lstm cell": ("aten::_thnn_fused_lstm_cell", [t(2, 32), t(2, 32), t(2, 8), t(32), t(32)], (13 + 8) * 16),
    "gru cell": ("aten::_thnn_fused_gru_cell", [t(2, 24), t(2, 24), t(2, 8)], 10 * 16),
    "fake quantisation": (
        "aten::fake_quantize_per_channel_affine_cachemask",
        [t(4, 3, 3), t(4), t(4, dtype="int32"), 0, -128, 127],
        5 * 36,
    ),
    "move": ("aten::max_unpool2d", [t(2, 3, 4, 4), t(2, 3, 4, 4, dtype="int64"), [8, 8]], 0),
    **{
        f"{form} {rank}d": (f"aten::{form}_pad{rank}d", [t(2, *[4] * (rank + 1)), [1] * 2 * rank], 0)
        for form in ("reflection", "replication")
        for rank in (1, 2, 3)
    },
    **{
        f"{form} {rank}d backward": (
            f"aten::{form}_pad{rank}d_backward",
            [t(2, 4, *[6] * rank), t(2, 4, *[4] * rank), [1] * 2 * rank],
            8 * 6**rank,
        )
        for form in ("reflection", "replication")
        for rank in (1, 2, 3)
    },
}


@pytest.mark.parametrize("case", OPS, ids=lambda case: case)
def test_operations(case: str) -> None:
    operator, arguments, expected = OPS[case]

    found = cost_of(operator, arguments)

    assert found is not None
    assert (found.elementwise_ops, found.model_flops) == (expected, 0)


FLOPS: dict[str, tuple[str, list[Any], int]] = {
    "conv_tbc": ("aten::conv_tbc", [t(10, 2, 8), t(3, 8, 16), t(16), 1], 2 * 10 * 2 * 8 * 16 * 3),
    "lu factor": ("aten::linalg_lu_factor_ex", [t(2, 6, 6)], 2 * 2 * 6**3 // 3),
    "lu solve": ("aten::linalg_lu_solve", [t(6, 6), t(6, dtype="int32"), t(6, 4)], 2 * 6 * 6 * 4),
    "ldl solve": ("aten::linalg_ldl_solve", [t(6, 6), t(6, dtype="int32"), t(6, 4)], 2 * 6 * 6 * 4),
    "triangular solve": ("aten::linalg_solve_triangular", [t(6, 6), t(6, 4)], 6 * 6 * 4),
    "triangular solve, right side first": ("aten::triangular_solve", [t(6, 4), t(6, 6)], 6 * 6 * 4),
    "cholesky": ("aten::cholesky", [t(6, 6)], 6**3 // 3),
    "cholesky solve": ("aten::cholesky_solve", [t(6, 4), t(6, 6)], 2 * 6 * 6 * 4),
    "cholesky inverse": ("aten::cholesky_inverse", [t(6, 6)], 2 * 6**3 // 3),
    "householder": ("aten::linalg_householder_product", [t(8, 6), t(6)], 2 * 8 * 6 * 6),
    "least squares": ("aten::linalg_lstsq", [t(8, 6), t(8, 4)], 2 * 8 * 6 * 6 + 4 * 8 * 6 * 4),
    # 6 reflections of vectors of 8: each from its own place on
    "reflections": ("aten::ormqr", [t(8, 6), t(6), t(8, 4)], 4 * (4 * 8 * 6 - 2 * 6 * 6)),
    "pseudo-inverse": ("aten::linalg_pinv", [t(8, 6)], (6 + 2) * 8 * 6 * 6),
    "eigenvectors": ("aten::linalg_eig", [t(6, 6)], 25 * 6**3),
    "cross entropy with its gradients": (
        "torch_nn::_linear_cross_entropy_batch_chunked",
        [
            *(t(8, 16), t(50, 16), t(8, dtype="int64"), None, None, "mean", -100, 0.0, 4, "compact", "float32", False),
            *(True, True, False),
        ],
        3 * 2 * 8 * 16 * 50,
    ),
    "cross entropy of rows": (
        "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
        [t(8, 16), t(50, 16), t(8, dtype="int64"), None, None, -100, 4, "compact", "float32"],
        2 * 8 * 16 * 50,
    ),
}


@pytest.mark.parametrize("case", FLOPS, ids=lambda case: case)
def test_model_flops(case: str) -> None:
    operator, arguments, expected = FLOPS[case]

    found = cost_of(operator, arguments)

    assert found is not None
    assert found.model_flops == expected


BYTES: dict[str, tuple[str, list[Any], int, int]] = {
    "copies": ("aten::_foreach_copy_", [[t(8), t(4)], [t(8, dtype="bfloat16"), t(4)], False], 16 + 16, 32 + 16),
    "zeros": ("aten::_foreach_zero_", [[t(8), t(4)]], 0, 48),
    "sums": ("aten::_foreach_add_", [[t(8), t(4)], [t(8), t(4)]], 2 * 48, 48),
    "unscaled": ("aten::_amp_foreach_non_finite_check_and_unscale_", [[t(8), t(4)], t(1), t(1)], 56, 52),
    "fused sgd": ("aten::_fused_sgd_", [[t(100)], [t(100)], [t(100)]], 1200, 800),
    "fused adamw": (
        "aten::_fused_adamw_",
        [[t(100)], [t(100)], [t(100)], [t(100)], [], [t()]],
        16 * 100,
        12 * 100,
    ),
    "a number for the host": ("aten::_local_scalar_dense", [t()], 4, 0),
    "sparse bag": (
        "aten::_embedding_bag_backward",
        [*BAG, 100, False, 0, True, None, -1],
        4 * 64 + 2 * 8 * 12 + 3 * 8 * 4,
        4 * 12 * 16 + 8 * 12,
    ),
}


@pytest.mark.parametrize("case", BYTES, ids=lambda case: case)
def test_what_returns_nothing_writes_what_its_formula_says(case: str) -> None:
    operator, arguments, read, written = BYTES[case]

    found = cost_of(operator, arguments, outputs=[])

    assert found is not None
    assert (found.bytes_read, found.bytes_written) == (read, written)


def test_a_tensor_of_zeros_that_is_not_there_costs_nothing() -> None:
    found = cost_of("aten::_efficientzerotensor", [[8, 4]], outputs=[t(8, 4)])

    assert found is not None
    assert (found.kind, found.all_flops, found.bytes_written) == ("view", 0, 0)


def test_recorded_interpolation_counts_its_results() -> None:
    dims, types = "[[2, 3, 4, 4], [], [], [], []]", '["float", "ScalarList", "Scalar", "", ""]'

    found = recorded_cost("aten::upsample_bilinear2d", dims, types, '["", "[8, 8]", "False", "", ""]')

    assert found is not None
    assert (found.elementwise_ops, found.bytes_written) == (8 * 384, 4 * 384)


def test_chunks_that_do_not_tell_their_gradients_are_left_to_their_products() -> None:
    arguments = [t(8, 16), t(50, 16), t(8, dtype="int64"), *[None] * 12]

    assert cost_of("torch_nn::_linear_cross_entropy_batch_chunked", arguments) is None


def test_foreach_forms_have_the_kind_of_their_formula() -> None:
    assert kind_of("aten::_foreach_copy_") == "other"
    assert kind_of("aten::_foreach_mul_") == "elementwise"


# Of a parameter of fp32: AdamW multiplies it (8 bytes) and the second moment (8), mixes the first moment (lerp, reads
# 2: 12), addcmul reads 3 (16), sqrt 8, div 8, add 8, addcdiv reads 3 (16). The fused one reads 4 and writes 3.
@pytest.mark.parametrize(("form", "size"), [("foreach", 84), ("fused", 28), (None, 84)])
def test_every_form_of_adamw_counts_its_operations_and_bytes(form: str | None, size: int) -> None:
    model = nn.Linear(64, 48, bias=False)
    chosen = {"foreach": False, "fused": False} | ({form: True} if form else {})
    optimizer = torch.optim.AdamW(model.parameters(), **chosen)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()

    with FlopCounter(model) as counter:
        optimizer.step()
    found = counter.profile.optimizer

    assert counter.profile.uncovered == ()
    assert found.elementwise_ops - 14 * 64 * 48 in {0, 1}  # the number of the step
    assert 0 <= found.bytes - size * 64 * 48 <= 32


def _binary(data: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(data, torch.ones_like(data))


def _sampled(data: torch.Tensor) -> torch.Tensor:
    return functional.grid_sample(data[None, None], torch.zeros(1, 5, 5, 2, requires_grad=True), align_corners=False)


def _spoken(data: torch.Tensor) -> torch.Tensor:
    labels = torch.ones(2, 3, dtype=torch.long)
    return functional.ctc_loss(data.view(4, 2, 8).log_softmax(2), labels, [4, 4], [1, 3])


LIVE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "with logits": _binary,
    "huber": lambda data: functional.huber_loss(data, torch.zeros_like(data)),
    "soft margin": lambda data: functional.soft_margin_loss(data, torch.ones_like(data)),
    "ctc": _spoken,
    "grid": _sampled,
    "reflected": lambda data: functional.pad(data, (1, 1), "reflect"),
    "adaptive": lambda data: functional.adaptive_max_pool2d(data[None], 2),
    "linear": lambda data: functional.interpolate(data[None], scale_factor=2, mode="linear"),
    "antialiased": lambda data: functional.interpolate(data[None, None], size=(4, 4), mode="bilinear", antialias=True),
    "solve": lambda data: torch.linalg.solve(data + 9 * torch.eye(8), data),
    "determinant": lambda data: torch.linalg.det(data + 9 * torch.eye(8)),
    "least squares": lambda data: torch.linalg.lstsq(data, data).solution,
}


@pytest.mark.parametrize("case", LIVE, ids=lambda case: case)
def test_forward_and_backward_are_covered(case: str) -> None:
    data = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()

    with FlopCounter() as counter:
        LIVE[case](data).sum().backward()

    assert counter.profile.uncovered == ()
    assert counter.failure is None


def test_a_convolution_over_time_costs_as_much_again_for_each_gradient() -> None:
    data, weight = torch.randn(10, 2, 8, requires_grad=True), torch.randn(3, 8, 16, requires_grad=True)

    with FlopCounter() as counter:
        torch.conv_tbc(data, weight, torch.zeros(16), 1).sum().backward()
    profile = counter.profile

    one = 2 * 10 * 2 * 8 * 16 * 3
    assert profile.forward.model_flops == one
    # beyond the edges the two products of each place in the kernel are left out: of 30 rows 2 are not there
    assert profile.backward.model_flops == 2 * one * 28 // 30
    assert profile.uncovered == ()
