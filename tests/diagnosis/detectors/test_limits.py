"""Families of kernels far from the device's limits: only those whose work is known at all."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import case_of
from tests.diagnosis.jobs import A100, Job, shaped

from whystall.diagnosis.detectors.limits import FarFamily, far_from_limits

SIZE: Final = 4096
LEAST_NS: Final = 2 * SIZE**3 / 312e12 * 1e9


@pytest.mark.parametrize(("times", "told"), [(2, False), (10, True), (10_000, False)])
def test_a_ratio_that_nobody_would_believe_is_none_of_the_kernels(times: int, told: bool) -> None:
    """A call whose recorded sizes are those of a part of its work takes thousands of times as long as they need."""
    job = Job(A100)
    for _ in job.steps(4):
        square = shaped([SIZE, SIZE], [SIZE, SIZE], dtype="c10::BFloat16")
        job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8", round(times * LEAST_NS), **square)
        job.wait()
    found = far_from_limits(case_of(job.built))
    assert isinstance(found, FarFamily) == told
    if isinstance(found, FarFamily):
        assert found.times == pytest.approx(times, rel=0.2)
