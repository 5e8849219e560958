"""compute.fusible: four operators in a row that pass a tensor on fire it, by their shapes;
short rows and fused ones do not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, GAP_NS, MI300X, Job, is_worth, shaped

SIZE: Final = [4096, 4096]
BYTES: Final = 4 * 4096 * 4096
CHAIN: Final = ("aten::mul", "aten::sigmoid", "aten::add", "aten::tanh", "aten::neg")
ATEN: Final = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::sigmoid_kernel_cuda(at::TensorIteratorBase&)>"
)
PRODUCT_NS: Final = 1_000_000


def pass_ns(gb_per_s: float) -> int:
    """What reading a tensor and writing another takes at 85 % of a bandwidth (reference: causes.md)."""
    return round(2 * BYTES / (0.85 * gb_per_s))


def network(
    operators: tuple[str, ...], lasts: int, *, kernel: str = ATEN, device: dict[str, Any] = A100, api: str = "cuda"
) -> Job:
    """Eight steps of a product of 1 ms and operators on its result, each of which passes a tensor on."""
    job = Job(device, api=api)
    for _ in job.steps(8):
        for operator in operators:
            if operator == "aten::mm":
                job.operator(operator, "ampere_sgemm_128x128_nn", PRODUCT_NS, **shaped(SIZE, SIZE, dtype="double"))
            else:
                job.operator(operator, kernel, lasts, **shaped(SIZE))
        job.wait()
    return job


@pytest.mark.parametrize(
    ("kernel", "device", "api", "gb_per_s"),
    [
        (ATEN, A100, "cuda", 2039),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::AddFunctor<float>, std::array<char*, 2>>",
            A100,
            "cuda",
            2039,
        ),
        (
            "void (anonymous namespace)::softcap_kernel(float*, float const*)",
            A100,
            "cuda",
            2039,
        ),  # the operators say it
        ("void at::native::elementwise_kernel_manual_unroll<512, 8, at::native::gpu_kernel_impl>", MI300X, "hip", 5300),
    ],
)
def test_a_chain_is_worth_all_its_passes_but_one(
    kernel: str, device: dict[str, Any], api: str, gb_per_s: float
) -> None:
    lasts = pass_ns(gb_per_s)
    job = network(("aten::mm", *CHAIN, "aten::mm"), lasts, kernel=kernel, device=device, api=api)
    finding = found_in(job.built)["compute.fusible"]
    is_worth(finding, job.step_ns / (job.step_ns - 4 * (lasts + GAP_NS)))
    assert finding.evidence[1].value == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    "operators",
    [
        ("aten::mm", *CHAIN[:3], "aten::mm"),  # as networks are written
        ("aten::mm", *CHAIN[:3], "aten::mm", *CHAIN[:3]),  # a product between them
    ],
)
def test_short_chains_are_none(operators: tuple[str, ...]) -> None:
    assert "compute.fusible" not in found_in(network(operators, pass_ns(2039)).built)


def test_operators_on_different_tensors_are_no_chain() -> None:
    job = Job(A100)
    for _ in job.steps(8):
        job.operator("aten::mm", "ampere_sgemm_128x128_nn", PRODUCT_NS, **shaped(SIZE, SIZE, dtype="double"))
        for rows, operator in enumerate(CHAIN):
            job.operator(operator, ATEN, 80_000, **shaped([4096 - rows, 4096]))
        job.wait()
    assert "compute.fusible" not in found_in(job.built)


def test_what_a_compiler_has_fused_is_none() -> None:
    job = network(("aten::mm", "triton_poi_fused_mul_sigmoid_add_tanh_neg_0"), pass_ns(2039))
    assert "compute.fusible" not in found_in(job.built)


def test_the_loop_of_an_optimizer_is_another_cause() -> None:
    job = Job(A100)
    for _ in job.steps(8):
        job.operator("aten::mm", "ampere_sgemm_128x128_nn", PRODUCT_NS, **shaped(SIZE, SIZE, dtype="double"))
        with job.marked("Optimizer.step#AdamW.step"):
            for operator in CHAIN:
                job.operator(operator, ATEN, 80_000, **shaped(SIZE))
        job.wait()
    assert "compute.fusible" not in found_in(job.built)
