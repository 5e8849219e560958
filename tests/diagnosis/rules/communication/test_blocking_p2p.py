"""communication.blocking-p2p: no rule looks for it; messages that compute waits for are the largest loss, and
whether the other rank was late is not known from one rank.
"""

from __future__ import annotations

from tests.diagnosis.jobs import Job, message

import whystall

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def test_messages_on_the_computing_stream_are_exposed() -> None:
    job = Job()
    for _ in job.steps(8):
        for _ in range(4):
            job.launch("gemm", 1_000_000)
            job.launch(SEND, 800_000, **message("send", 200 << 20))
        job.wait()
    report = whystall.analyze(job.built.load())
    assert report.verdict.cause is None
    assert "the largest loss is communication that nothing hides (44.4 %)" in report.verdict.summary
