"""Workers make batches at their own pace: where nearly each step waits for them, no other repair shortens steps."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import told_of
from tests.diagnosis.jobs import A100, Job, shaped

NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def training(*, waits: int, every: int = 1, within: str = NEXT) -> Job:
    """Eight steps that wait for a batch, compute in double precision, and read the loss."""
    job = Job(A100)
    for number in job.steps(8):
        with job.marked(within):
            job.python(waits if number % every == 0 else 20_000)
        for _ in range(4):
            job.operator("aten::mul", "elementwise_kernel", 1_000_000, **shaped([1 << 20], [1 << 20], dtype="double"))
            job.operator("aten::mm", "gemm", 1_000_000, **{"Fwd thread id": 1})
        job.wait()
    return job


def test_a_repair_beside_workers_that_never_rest_is_worth_nothing_until_they_keep_up() -> None:
    found = told_of(training(waits=5_000_000).built)
    assert found["input.too-few-workers"].gain is not None
    other = found["compute.double-precision"]
    assert other.severity == "info"
    assert other.gain is None or other.gain.expected == 1.0
    assert "once input.too-few-workers is removed, removing this saves a further" in other.title


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(training(waits=10_000), id="batches are there"),
        pytest.param(training(waits=280_000), id="batches are handed over"),
        pytest.param(training(waits=5_000_000, every=2), id="every other step waits"),
        pytest.param(
            training(waits=5_000_000, within=NEXT.replace("Multi", "Single").replace("Processing", "Process")),
            id="the training thread makes them",
        ),
    ],
)
def test_elsewhere_it_is_worth_its_time(job: Job) -> None:
    gain = told_of(job.built)["compute.double-precision"].gain
    assert gain is not None
    assert gain.expected > 1.05
