"""inference.kv-cache-pressure: no rule looks for it; requests that wait are in no trace, and nothing is made of it."""

from __future__ import annotations

from tests.diagnosis.cases import told_of
from tests.diagnosis.jobs import Job


def test_small_batches_for_want_of_memory_are_told_as_small_batches() -> None:
    """Kernels as long as for a large batch, since decoding reads all weights: nothing tells how many requests wait."""
    job = Job()
    for _ in job.steps(8):
        for _ in range(4):
            job.launch("gemv", 500_000)
        job.wait()
    assert {one.severity for one in told_of(job.built).values()} <= {"info"}
