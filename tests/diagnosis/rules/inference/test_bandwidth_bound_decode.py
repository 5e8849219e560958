"""inference.bandwidth-bound-decode: steps that read the weights at full bandwidth are told;
prefills and slow ones are not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import told_of
from tests.diagnosis.jobs import H100, MI300X, Job, shaped

SIZE: Final = 8192
LAYERS: Final = 4


def decoding(
    share: float,
    *,
    rows: int = 1,
    device: dict[str, Any] = H100,
    gb_per_s: float = 3350,
    api: str = "cuda",
    trained: bool = False,
) -> Job:
    """Ten steps of four products of some rows with weights of 128 MiB, at a share of the bandwidth."""
    job = Job(device, api=api)
    more: dict[str, Any] = {"Fwd thread id": 1, "Sequence number": 1} if trained else {}
    kernel = "void gemv2T_kernel_val<int, int, __nv_bfloat16>" if api == "cuda" else "wvSplitK_hf_sml_<__hip_bfloat16>"
    lasts = round(2 * SIZE * SIZE / (share * gb_per_s))
    for _ in job.steps(10):
        for _ in range(LAYERS):
            shapes = shaped([rows, SIZE], [SIZE, SIZE], dtype="c10::BFloat16")
            job.operator("aten::mm", kernel, lasts, **shapes, **more)
    return job


@pytest.mark.parametrize(
    ("device", "gb_per_s", "api", "rows"),
    [(H100, 3350, "cuda", 1), (H100, 3350, "cuda", 16), (MI300X, 5300, "hip", 1)],
)
def test_reading_the_weights_at_the_bandwidth_is_told(
    device: dict[str, Any], gb_per_s: float, api: str, rows: int
) -> None:
    told = told_of(decoding(0.8, rows=rows, device=device, gb_per_s=gb_per_s, api=api).built)
    finding = told["inference.bandwidth-bound-decode"]
    assert (finding.severity, finding.remedy) == ("info", None)
    assert "memory bandwidth" in finding.title
    assert "compute.at-limit" not in told


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(decoding(0.5), id="at half the bandwidth"),
        pytest.param(decoding(0.8, rows=4096), id="a prefill, which computes"),
        pytest.param(decoding(0.8, trained=True), id="training"),
    ],
)
def test_slow_reading_prefills_and_training_are_none(job: Job) -> None:
    assert "inference.bandwidth-bound-decode" not in told_of(job.built)


def test_a_device_that_waits_for_the_host_between_steps_is_not_at_its_limit() -> None:
    job = Job(H100)
    for _ in job.steps(10):
        lasts = round(2 * SIZE * SIZE / (0.8 * 3350))
        job.operator("aten::mm", "gemv", lasts, **shaped([1, SIZE], [SIZE, SIZE], dtype="c10::BFloat16"))
        job.wait()
        job.python(lasts)
    assert "inference.bandwidth-bound-decode" not in told_of(job.built)
