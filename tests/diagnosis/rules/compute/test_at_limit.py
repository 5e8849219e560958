"""compute.at-limit: products at the rate that good kernels reach, with no gaps, are told;
slower ones and gaps are not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import told_of
from tests.diagnosis.jobs import H100, MI300X, shaped

from whystall.testing import TraceBuilder, trace

SIZE: Final = 8192


def nanoseconds(tflops: float, share: float) -> int:
    """What a product of 8192 cubed takes at a share of a peak."""
    return round(2 * SIZE**3 / (share * tflops * 1e12) * 1e9)


def products(
    takes_ns: int,
    *,
    gap_ns: int = 2_000,
    device: dict[str, Any] = H100,
    kernel: str = "nvjet_tst_bf16",
    api: str = "cuda",
) -> TraceBuilder:
    """Ten training steps of one product in bf16; the next follows after a gap."""
    built = trace(deviceProperties=[device])
    for number in range(10):
        at = number * (takes_ns + gap_ns)
        built.step(number, at=at, lasts=takes_ns + gap_ns)
        more: dict[str, Any] = {"Fwd thread id": 1, "Sequence number": number}
        built.operator(
            "aten::mm", at=at + 1_000, lasts=9_000, **shaped([SIZE, SIZE], [SIZE, SIZE], dtype="c10::BFloat16"), **more
        )
        built.launch(
            kernel, at=at + 3_000, call=f"{api}LaunchKernel", call_lasts=4_000, runs_at=at + 10_000, lasts=takes_ns
        )
    return built


@pytest.mark.parametrize(
    ("device", "kernel", "api", "tflops"),
    [
        (H100, "nvjet_tst_bf16", "cuda", 989),
        (H100, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute", "cuda", 989),
        (MI300X, "Cijk_Alik_Bljk_BBS_BH_MT256x256x64_MI16x16x1_SN", "hip", 1307.4 * 0.6),  # 0.51 of it was measured
    ],
)
def test_products_near_the_best_measured_rate_are_told_to_be(
    device: dict[str, Any], kernel: str, api: str, tflops: float
) -> None:
    finding = told_of(products(nanoseconds(tflops, 0.7), device=device, kernel=kernel, api=api))["compute.at-limit"]
    assert (finding.severity, finding.remedy) == ("info", None)
    assert "matrix products" in finding.title


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(products(nanoseconds(989, 0.4)), id="at half the rate"),
        pytest.param(products(nanoseconds(989, 0.7), gap_ns=nanoseconds(989, 1.0)), id="with gaps as long"),
    ],
)
def test_slow_products_and_gaps_leave_something_to_gain(built: TraceBuilder) -> None:
    assert "compute.at-limit" not in told_of(built)


def test_moving_bytes_at_the_bandwidth_is_a_limit_of_training_too() -> None:
    """A product of one row reads its matrix: 128 MiB at 3350 GB/s."""
    takes_ns = round(SIZE * SIZE * 2 / (0.8 * 3350e9) * 1e9)
    built = products(takes_ns)
    for event in built.events:
        if event["name"] == "aten::mm":
            event["args"]["Input Dims"] = [[1, SIZE], [SIZE, SIZE]]
    told = told_of(built)
    assert "memory bandwidth" in told["compute.at-limit"].title
    assert "inference.bandwidth-bound-decode" not in told
