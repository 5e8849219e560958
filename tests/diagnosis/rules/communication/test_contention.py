"""communication.contention: kernels that take longer beside a collective than alone fire it; other shapes, kernels
that scatter and one kernel among many do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth, message

NCCL: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
RCCL: Final = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
KERNELS: Final = (
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>",
)
KERNEL_NS: Final = 1_000_000


def training(factors: tuple[float, ...], *, larger: bool = False, scatter: float = 0.0) -> Job:
    """Twelve steps, in each of which the kernels run alone, and again beside a collective, then longer.

    ``larger``: because they have more blocks; ``scatter``: also alone they differ from step to step by that share.
    """
    job = Job()
    for number in job.steps(12):
        for name in KERNELS:
            job.launch(name, round(KERNEL_NS * (1 + scatter * (number % 3))), grid=[256, 1, 1])
        job.wait()
        whole = sum(round(KERNEL_NS * factor) for factor in factors) + 3_000
        job.launch(NCCL, round(whole * 0.99), stream=20, **message("allreduce", 200 << 20))
        for name, factor in zip(KERNELS, factors, strict=True):
            job.launch(name, round(KERNEL_NS * factor), grid=[round(256 * factor) if larger else 256, 1, 1])
        job.wait()
    return job


def ended_early(factor: float, *, kernel: str = NCCL, api: str = "cuda") -> Job:
    """The collective ends before the kernels do: what they are slower by, the step is longer by."""
    job = Job(api=api)
    for _ in job.steps(12):
        for name in KERNELS * 2:
            job.launch(name, KERNEL_NS, grid=[256, 1, 1])
        job.wait()
        job.launch(kernel, round(4 * KERNEL_NS * factor * 0.99), stream=20, **message("allreduce", 200 << 20))
        for name in KERNELS:
            job.launch(name, round(KERNEL_NS * factor), grid=[256, 1, 1])
        for name in KERNELS:
            job.launch(name, KERNEL_NS, grid=[256, 1, 1])
        job.wait()
    return job


@pytest.mark.parametrize(("kernel", "api"), [(NCCL, "cuda"), (RCCL, "hip")])
def test_the_gain_is_what_the_kernels_are_slower_by(kernel: str, api: str) -> None:
    finding = found_in(ended_early(1.5, kernel=kernel, api=api).built)["communication.contention"]
    is_worth(finding, ended_early(1.5).step_ns / ended_early(1.0).step_ns)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(ended_early(1.0), id="as fast"),
        pytest.param(ended_early(1.05), id="less than a tenth slower"),
        pytest.param(training((1.4,) * 4, larger=True), id="more blocks"),
        pytest.param(training((1.6, 1.0, 1.0, 1.0)), id="one of four"),
        pytest.param(training((1.4,) * 4, scatter=0.4), id="they scatter alone as well"),
    ],
)
def test_what_has_another_reason_is_none(job: Job) -> None:
    assert "communication.contention" not in found_in(job.built)


def test_kernels_that_a_collective_slows_down_are_not_blamed_on_the_clock() -> None:
    assert "device.throttled" not in found_in(ended_early(1.5).built)
