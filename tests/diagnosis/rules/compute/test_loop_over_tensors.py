"""compute.loop-over-tensors: loops over tensors of many sizes fire it; what goes on with one tensor does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, Job, is_worth, shaped

PRODUCT_NS: Final = 3_000_000
PRODUCT: Final = shaped([4096, 4096], [4096, 4096], dtype="c10::BFloat16")
KERNEL_NS: Final = 4_000
ELEMENTWISE: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
SIZES: Final = ([64], [64, 64], [256, 64], [3, 3, 64], [512], [128])


def training(
    pattern: Sequence[str],
    tensors: int,
    *,
    sizes: Sequence[list[int]] = SIZES,
    read: bool = False,
    kernel: str = ELEMENTWISE,
) -> tuple[Job, float]:
    """Eight steps of a product and a loop, and the share of a step that the loop takes."""
    job, spent = Job(A100), 0.0
    for _ in job.steps(8):
        job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8", PRODUCT_NS, **PRODUCT)
        job.wait()
        begin = job.at
        for number in range(tensors):
            size = sizes[number % len(sizes)]
            for name in pattern:
                job.operator(name, kernel, KERNEL_NS, **shaped(size, size))
            if read:
                with job.inside("aten::_local_scalar_dense"):
                    job.launch("Memcpy DtoH (Device -> Pageable)", 1_000, call="MemcpyAsync")
                    job.wait()
        job.wait()
        spent += job.at - begin
    return job, spent / 8


@pytest.mark.parametrize(
    ("pattern", "tensors", "read", "patch"),
    [
        (("aten::sub", "aten::mul", "aten::sub_"), 100, False, "_foreach_lerp_"),
        (("aten::mul_", "aten::add_"), 60, False, "_foreach_lerp_"),
        (("aten::linalg_vector_norm",), 120, True, "_foreach_norm"),
        (("aten::clamp_",), 90, False, "torch._foreach_"),
        (("aten::sign", "aten::add_"), 90, False, "_foreach_lerp_"),
    ],
)
def test_a_loop_is_worth_nearly_all_of_its_time(pattern: tuple[str, ...], tensors: int, read: bool, patch: str) -> None:
    job, loop_ns = training(pattern, tensors, read=read)
    finding = found_in(job.built)["compute.loop-over-tensors"]
    is_worth(finding, job.step_ns / (job.step_ns - 0.95 * loop_ns), within=0.12)
    assert finding.remedy is not None
    assert patch in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    ("pattern", "tensors", "sizes", "kernel"),
    [
        (("aten::mul", "aten::add"), 60, ([256, 64],), ELEMENTWISE),  # goes on with one tensor, as Sinkhorn's does
        (("aten::mul", "aten::add"), 6, SIZES, ELEMENTWISE),  # a few
        (("aten::upsample_bilinear2d",), 90, SIZES, ELEMENTWISE),  # takes no list
        (("aten::copy_",), 90, SIZES, "Memcpy DtoH (Device -> Pageable)"),  # as a checkpoint reads
        (("aten::mul", "aten::mm"), 60, SIZES, ELEMENTWISE),  # passes of a model
    ],
)
def test_what_cannot_be_joined_is_none(
    pattern: tuple[str, ...], tensors: int, sizes: Sequence[list[int]], kernel: str
) -> None:
    job, _ = training(pattern, tensors, sizes=sizes, kernel=kernel)
    assert "compute.loop-over-tensors" not in found_in(job.built)


def test_the_loop_of_an_optimizer_is_another_cause() -> None:
    job = Job(A100)
    for _ in job.steps(8):
        job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8", PRODUCT_NS, **PRODUCT)
        with job.marked("Optimizer.step#SGD.step"):
            for number in range(90):
                size = SIZES[number % len(SIZES)]
                job.operator("aten::add_", ELEMENTWISE, KERNEL_NS, **shaped(size, size))
        job.wait()
    found = found_in(job.built)
    assert "compute.unfused-optimizer" in found
    assert "compute.loop-over-tensors" not in found
