"""communication.wrong-backend: no rule looks for it; gloo's copies through the host are told as what they are."""

from __future__ import annotations

from tests.diagnosis.jobs import Job

import whystall


def test_copies_that_the_step_waits_for_are_the_largest_loss() -> None:
    """Gradients go to the host, are added there by gloo, and come back."""
    job = Job()
    for _ in job.steps(8):
        job.launch("gemm", 1_000_000)
        job.launch("Memcpy DtoH (Device -> Pinned)", 700_000, call="MemcpyAsync", kind="gpu_memcpy")
        job.wait()
        with job.marked("gloo:all_reduce"):
            job.python(50_000)
        job.launch("Memcpy HtoD (Pinned -> Device)", 700_000, call="MemcpyAsync", kind="gpu_memcpy")
        job.wait()
    report = whystall.analyze(job.built.load())
    assert "copies that nothing hides" in report.verdict.summary
    assert not [one for one in report.findings if one.id.startswith("communication.") and one.severity != "info"]
