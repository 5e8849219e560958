"""device.slow-memory: large pointwise kernels, which only move bytes, show the rate of the device's memory."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnosis.jobs import H100, Job, shaped

import whystall
from whystall.diagnosis.finding import Finding

POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{0}>(int, float)"
SIZE = [64, 1024, 1024]  # 256 MiB
NAMED = {"aten::relu": "relu", "aten::sigmoid": "sigmoid_kernel_cuda", "aten::exp": "exp_kernel_cuda"}
MOBILE = {"id": 0, "name": "NVIDIA RTX 500 Ada Generation Laptop GPU", "computeMajor": 8, "computeMinor": 9}


def findings(
    gb_per_s: dict[str, float], device: dict[str, Any] = H100, *, size: list[int] = SIZE, product_ns: int = 5_000_000
) -> dict[str, Finding]:
    """A job of some pointwise kernels at rates of their own, and a product in single precision."""
    job = Job(device)
    moved = 8 * size[0] * size[1] * size[2]
    for _ in job.steps(6):
        for name, rate in gb_per_s.items():
            job.operator(name, POINTWISE.format(NAMED[name]), round(moved / rate), **shaped(size))
        sizes = shaped([8192, 512], [512, 8192])
        job.operator("aten::mm", "void gemmSN_NN_kernel<float, 128, 2, 4, 8>(float)", product_ns, **sizes)
        job.wait()
    return {one.id: one for one in whystall.analyze(job.built.load()).findings}


def test_a_device_that_moves_all_at_a_fifteenth_of_its_rate() -> None:
    found = findings({"aten::relu": 200.0, "aten::sigmoid": 220.0})["device.slow-memory"]
    assert found.gain is not None
    # 5.1 of 10.1 ms are pointwise; at 80 % of 3,350 GB/s they would take 0.4 ms.
    assert found.gain.expected == pytest.approx(10.1 / 5.4, rel=0.03)
    values = {one.what: one.value for one in found.evidence}
    assert values["large pointwise kernels read and write at most"] == pytest.approx(220e9, rel=0.01)


@pytest.mark.parametrize(
    ("rates", "size"),
    [
        ({"aten::relu": 200.0, "aten::sigmoid": 2_000.0}, SIZE),  # one kind shows what the memory can do
        ({"aten::relu": 200.0}, SIZE),  # may be the operator's own fault
        ({"aten::relu": 200.0, "aten::sigmoid": 220.0}, [1, 64, 64]),  # launching takes longer than moving
        ({"aten::relu": 1_100.0, "aten::sigmoid": 1_200.0}, SIZE),  # operands in another layout cost as much
    ],
)
def test_a_kernel_that_is_slow_for_its_own_reason(rates: dict[str, float], size: list[int]) -> None:
    assert "device.slow-memory" not in findings(rates, size=size)


def test_a_part_that_is_not_listed_has_the_least_bandwidth_of_its_architecture() -> None:
    mobile = MOBILE | {"numSms": 16, "totalGlobalMem": 4_292_345_856}
    assert "device.slow-memory" in findings({"aten::relu": 6.0, "aten::sigmoid": 7.0}, mobile)
    assert "device.slow-memory" not in findings({"aten::relu": 90.0, "aten::sigmoid": 100.0}, mobile)


def test_other_gains_are_replayed_at_the_rate_that_was_reached() -> None:
    """A product of 300 MB in single precision: at 220 GB/s its bytes take 1.4 ms, whatever its arithmetic takes."""
    slow = findings({"aten::relu": 200.0, "aten::sigmoid": 220.0}, product_ns=2_000_000)
    fast = findings({"aten::relu": 2_700.0, "aten::sigmoid": 2_800.0}, product_ns=2_000_000)
    at_pace, at_rate = slow["compute.fp32-matmul"].gain, fast["compute.fp32-matmul"].gain
    assert at_rate is not None
    assert at_rate.expected > 1.5
    assert at_pace is None or at_pace.expected < 1.2


def test_a_job_at_the_rate_of_its_memory_is_not_slowed_down() -> None:
    assert "device.slow-memory" not in findings(dict.fromkeys(NAMED, 2800.0))
