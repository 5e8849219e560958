"""communication.blocking-p2p: sends on the stream that computes fire it; on a stream of their own, receives, and
collectives do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth, message

NCCL: Final = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
RCCL: Final = "ncclDevKernel_Generic_2(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def training(kind: str, lasts: int = 800_000, *, stream: int = 7, kernel: str = NCCL, api: str = "cuda") -> Job:
    """Eight steps of four kernels of 1 ms, with a message after each."""
    job = Job(api=api)
    for _ in job.steps(8):
        for _ in range(4):
            job.launch("gemm", 1_000_000)
            job.launch(kernel, lasts, stream=stream, **message(kind, 200 << 20))
        job.wait()
    return job


@pytest.mark.parametrize(("kernel", "api"), [(NCCL, "cuda"), (RCCL, "hip")])
def test_sends_beside_compute_are_worth_their_time(kernel: str, api: str) -> None:
    finding = found_in(training("send", kernel=kernel, api=api).built)["communication.blocking-p2p"]
    is_worth(finding, training("send").step_ns / training("send", stream=20).step_ns, within=0.15)


def test_of_kernels_that_send_and_receive_the_half_is_expected() -> None:
    finding = found_in(training("send_recv").built)["communication.blocking-p2p"]
    is_worth(finding, training("send_recv").step_ns / training("send_recv", 400_000).step_ns)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(training("send", stream=20), id="a stream of their own"),
        pytest.param(training("recv"), id="what is received is needed"),
        pytest.param(training("allreduce", kernel=ALL_REDUCE), id="a collective"),
        pytest.param(training("send", 5_000), id="next to nothing"),
    ],
)
def test_messages_beside_compute_and_what_is_needed_are_none(job: Job) -> None:
    assert "communication.blocking-p2p" not in found_in(job.built)
