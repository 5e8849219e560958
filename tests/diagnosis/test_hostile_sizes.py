"""Recorded sizes are untrusted: no rule fails, whatever they are."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, Job

KERNEL: Final = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
OPERATORS: Final = (
    "aten::embedding", "aten::mm", "aten::addmm", "aten::argmax", "aten::_softmax", "aten::cat", "aten::convolution",
    "aten::copy_", "aten::mul_", "aten::linalg_vector_norm",
)  # fmt: skip


@pytest.mark.parametrize(
    "sizes",
    [
        {"a": 1}, {}, True, "no sizes", [], [[]], [[], [], [], 5], [None] * 4, [[1, None], [2, 3]], [[[]], [[1], "x"]],
        [[-1, 2], [2, -3]], [[1 << 70, 2], [2, 3]], [[0, 0], [0, 0], [0], [0, 0]], [[1.5, 2], [2, 3]],
        [[[2, 3], [2, 1]], [2, 3], [3, 4], [4, 5]],
    ],
    ids=str,
)  # fmt: skip
def test_no_rule_fails_over_sizes(sizes: Any) -> None:
    job = Job(A100)
    given: dict[str, Any] = {"Input Dims": sizes, "Input type": ["c10::BFloat16"] * 4, "Input Strides": sizes}
    for _ in job.steps(4):
        for name in OPERATORS:
            job.operator(name, KERNEL, 500_000, **given)
        with job.inside("aten::scaled_dot_product_attention", **given):
            job.operator("aten::_scaled_dot_product_efficient_attention", "fmha_cutlassF_bf16", 500_000, **given)
        job.wait()
    found_in(job.built)  # asserts that no rule failed
