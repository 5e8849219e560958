"""communication.wrong-backend: gloo in place of NCCL and nn.DataParallel fire it; gloo beside NCCL, gloo behind compute
and gloo without a device do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, message

from whystall.testing import trace

NCCL: Final = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
RCCL: Final = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"


def training(gloo_ns: int, *, beside: str = "", api: str = "cuda", name: str = "gloo:all_reduce") -> Job:
    """Eight steps of 2 ms of kernels, after which gloo adds up gradients on the host; ``beside``: on the device too."""
    job = Job(api=api)
    for _ in job.steps(8):
        job.launch("gemm", 2_000_000)
        if beside:
            job.launch(beside, 100_000, **message("allreduce", 1 << 20))
        job.wait()
        with job.marked(name):
            job.python(gloo_ns)
    return job


@pytest.mark.parametrize("api", ["cuda", "hip"])
@pytest.mark.parametrize("name", ["gloo:all_reduce", "gloo:allreduce"])
def test_what_nothing_hides_of_gloo_is_worth_its_time(api: str, name: str) -> None:
    finding = found_in(training(2_000_000, api=api, name=name).built)["communication.wrong-backend"]
    assert finding.gain is not None
    # Between devices a tenth of it is left: 4 ms become 2.2.
    assert finding.gain.floor <= 4 / 2.2 <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(4 / 2.2, rel=0.03)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(training(2_000_000, beside=NCCL), id="gloo beside NCCL"),
        pytest.param(training(2_000_000, beside=RCCL, api="hip"), id="gloo beside RCCL"),
        pytest.param(training(20_000), id="next to nothing"),
        pytest.param(training(2_000_000, name="all_reduce"), id="another annotation"),
    ],
)
def test_gloo_beside_the_devices_own_library_is_none(job: Job) -> None:
    assert "communication.wrong-backend" not in found_in(job.built)


def test_gloo_behind_compute_is_none() -> None:
    job = Job()
    for _ in job.steps(8):
        job.launch("gemm", 4_000_000)
        with job.marked("gloo:all_reduce"):
            job.python(2_000_000)
        job.wait()
    assert "communication.wrong-backend" not in found_in(job.built)


def test_gloo_without_a_device_is_what_there_is() -> None:
    built = trace()
    for number in range(8):
        built.step(number, at=number * 10_000_000, lasts=9_000_000)
        built.operator("aten::mm", at=number * 10_000_000, lasts=4_000_000)
        built.operator("gloo:all_reduce", at=number * 10_000_000 + 4_000_000, lasts=4_000_000)
    assert "communication.wrong-backend" not in found_in(built)


@pytest.mark.parametrize("devices", [1, 2])
def test_data_parallel_over_several_devices_is_told(devices: int) -> None:
    built = trace()
    for number in range(8):
        at = number * 4_000_000
        built.step(number, at=at, lasts=3_900_000)
        built.python("nn.Module: DataParallel_0", at=at, lasts=1_000_000)
        for device in range(devices):
            built.launch(
                "gemm",
                at=at + 20_000 * (device + 1),
                call_lasts=5_000,
                runs_at=at + 100_000,
                lasts=3_000_000,
                device=device,
            )
    found = found_in(built).get("communication.wrong-backend")
    assert (found is not None) is (devices > 1)
    if found is not None:
        assert found.in_step is not None
        assert sum(length for _, length in found.in_step.marks) == pytest.approx(1_000_000, rel=0.05)


def test_the_time_within_gloo_is_not_pythons() -> None:
    assert "host.python" not in found_in(training(2_000_000).built)


def test_the_copies_to_the_host_and_back_are_its_cost_too() -> None:
    """2 ms of gloo and two copies of 0.7 ms are 3.4 of 5.4 ms."""
    job = Job()
    for _ in job.steps(8):
        job.launch("gemm", 2_000_000)
        for name in ("Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"):
            job.launch(name, 700_000, call="MemcpyAsync", kind="gpu_memcpy", bytes=17_500_000)
            job.wait()
            with job.marked("gloo:all_reduce"):
                job.python(1_000_000)
    gain = found_in(job.built)["communication.wrong-backend"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(5.4 / (5.4 - 0.9 * 3.4), rel=0.05)
