"""compute.padding: no rule looks for it; shapes are those of the padded batch, whatever is in it."""

from __future__ import annotations

from tests.diagnosis.cases import told_of
from tests.diagnosis.jobs import H100, Job, shaped


def test_a_padded_batch_is_told_as_any_batch() -> None:
    """A batch of 64 sequences, which all are as long as the longest: how much of them is padding is in no event."""
    job = Job(H100)
    batch = shaped([64 * 512, 4096], [4096, 4096], dtype="c10::BFloat16")
    takes_ns = round(2 * 64 * 512 * 4096 * 4096 / (0.7 * 989e3))
    for _ in job.steps(8):
        for _ in range(4):
            job.operator("aten::mm", "nvjet_tst_bf16", takes_ns, **batch)
        job.wait()
    told = told_of(job.built)
    assert {one.severity for one in told.values()} <= {"info"}
    assert "compute.at-limit" in told  # the arithmetic is done as fast as it can be, needed or not
