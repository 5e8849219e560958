"""device.degraded: no rule looks for it; a device that is slow in all steps is far from its limits, no more is said."""

from __future__ import annotations

from tests.diagnosis.jobs import H100, Job, shaped

import whystall


def test_a_device_at_a_fifth_of_its_rate_is_no_health_and_has_no_name() -> None:
    size = 8192
    job = Job(H100)
    for _ in job.steps(8):
        for _ in range(4):
            takes_ns = round(2 * size**3 / (0.14 * 989e3))
            job.operator(
                "aten::mm", "nvjet_tst_bf16", takes_ns, **shaped([size, size], [size, size], dtype="c10::BFloat16")
            )
        job.wait()
    report = whystall.analyze(job.built.load())
    assert report.verdict.cause is None
    assert "the device could be faster: gemm kernels take" in report.verdict.summary
