"""compute.slow-convolution: no rule looks for it; convolutions far from what the device can do are told to be, without
a name.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnosis.jobs import A100, Job

import whystall

FLOPS = 2 * 64 * 56 * 56 * 256 * 256 * 9


@pytest.mark.parametrize(("share", "far"), [(0.1, True), (0.7, False)])
def test_slow_convolutions_are_no_health(share: float, *, far: bool) -> None:
    job = Job(A100)
    scalars = ["", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]
    arguments: dict[str, Any] = {
        "Input Dims": [[64, 256, 56, 56], [256, 256, 3, 3], *[[]] * 7],
        "Input type": ["c10::Half", "c10::Half", *scalars],
        "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    }
    for _ in job.steps(8):
        for _ in range(4):
            job.operator(
                "aten::convolution",
                "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32",
                round(FLOPS / (share * 312e3)),
                **arguments,
            )
        job.wait()
    summary = whystall.analyze(job.built.load()).verdict.summary
    assert ("convolution kernels take" in summary) is far
    assert summary.startswith("Healthy") is not far
