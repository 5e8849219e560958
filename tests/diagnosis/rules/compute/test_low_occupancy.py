"""compute.low-occupancy: no rule looks for it; an estimate of a low occupancy alone is no cause."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnosis.cases import told_of
from tests.diagnosis.jobs import Job


@pytest.mark.parametrize("percent", [3, 100])
def test_an_estimated_occupancy_decides_nothing(percent: int) -> None:
    """Good matrix kernels keep few warps, each with many registers: the estimate says nothing of their speed."""
    job = Job()
    estimate: dict[str, Any] = {"est. achieved occupancy %": percent}
    for _ in job.steps(8):
        for _ in range(4):
            job.launch("sm90_xmma_gemm_bf16bf16", 500_000, **estimate)
        job.wait()
    assert {one.severity for one in told_of(job.built).values()} <= {"info"}
