"""compute.wave-quantization: no rule looks for it; a last wave that is nearly empty is not called anything else."""

from __future__ import annotations

from typing import Any

from tests.diagnosis.cases import told_of
from tests.diagnosis.jobs import Job


def waves(blocks: int) -> Job:
    """Eight steps of products of one block more than a H100 has multiprocessors: each takes as long as two waves."""
    job = Job()
    grid: dict[str, Any] = {"grid": [blocks, 1, 1], "blocks per SM": blocks / 132}
    for _ in job.steps(8):
        for _ in range(4):
            job.launch("gemm", 1_000_000 if blocks > 132 else 500_000, **grid)
        job.wait()
    return job


def test_two_waves_are_told_as_little_as_one() -> None:
    for blocks in (132, 133):
        assert {one.severity for one in told_of(waves(blocks).built).values()} <= {"info"}
