"""memory.offload-thrash: no rule looks for it; copies that the step waits for are told as the largest loss."""

from __future__ import annotations

from tests.diagnosis.jobs import Job

import whystall


def test_state_that_goes_back_and_forth_is_time_in_copies() -> None:
    job = Job()
    for _ in job.steps(8):
        job.launch("Memcpy HtoD (Pinned -> Device)", 900_000, call="MemcpyAsync", kind="gpu_memcpy", bytes=20_000_000)
        job.launch("gemm", 1_000_000)
        job.launch("Memcpy DtoH (Device -> Pinned)", 900_000, call="MemcpyAsync", kind="gpu_memcpy", bytes=20_000_000)
        job.wait()
    verdict = whystall.analyze(job.built.load()).verdict
    assert verdict.cause is None
    assert verdict.summary.startswith("No cause was named for the largest loss")
    assert "copies that nothing hides" in verdict.summary
