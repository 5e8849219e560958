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


def on_a_cpu(*names: str, sizes: list[list[int]], strangers_ns: int = 20_000_000) -> Job:
    """Eight steps of operators of 5 ms each on a CPU, one after the other, and a product of 20 ms."""
    job = Job()
    for _ in job.steps(8):
        for name in names:
            with job.inside(name, **shaped(*sizes)):
                job.python(5_000_000)
        with job.inside("aten::mm", **shaped([512, 512], [512, 512])):
            job.python(strangers_ns)
    return job


ON_A_CPU: Final = ("aten::mul", "aten::tanh", "aten::add", "aten::mul")


def test_a_chain_on_a_cpu_is_worth_what_is_handed_over() -> None:
    """Of 12 tensors that the four operators read and write, three are handed over, to be read no more."""
    finding = found_in(on_a_cpu(*ON_A_CPU, sizes=[[1 << 20], [1 << 20]]).built)["compute.fusible"]
    assert finding.gain is not None
    assert finding.gain.floor == pytest.approx(1 / (1 - 0.5 * 3 / 12), rel=0.03)
    assert 1 / (1 - 0.5 * 3 / 12) < finding.gain.expected < 1 / (1 - 0.5 * 6 / 12)
    assert finding.gain.ceiling >= 1 / (1 - 0.5 * 6 / 12)
    assert finding.remedy is not None
    assert "F.gelu" in finding.remedy.text


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (ON_A_CPU[:3], [[1 << 20], [1 << 20]]),  # three in a row
        (("aten::mul",) * 6, [[1 << 20], [1 << 20]]),  # one operator on many tensors
        (ON_A_CPU, [[1 << 10], [1 << 10]]),  # small tensors stay in the cache
        (("aten::mul", "aten::mm", "aten::add", "aten::mul"), [[1024, 1024], [1024, 1024]]),  # a product between
    ],
)
def test_what_is_no_chain_on_a_cpu(names: tuple[str, ...], sizes: list[list[int]]) -> None:
    assert "compute.fusible" not in found_in(on_a_cpu(*names, sizes=sizes).built)


def test_a_short_chain_in_a_long_step_is_how_networks_are_written() -> None:
    job = on_a_cpu(*ON_A_CPU, sizes=[[1 << 20], [1 << 20]], strangers_ns=200_000_000)
    assert "compute.fusible" not in found_in(job.built)


def test_chains_of_a_job_that_differentiates_twice_are_none_since_nothing_compiled_does_so() -> None:
    job = network(("aten::mm", *CHAIN, "aten::mm"), pass_ns(2039))
    assert "compute.fusible" in found_in(job.built)
    job.operator("autograd::engine::evaluate_function: TanhBackwardBackward0", ATEN, 1000, **shaped(SIZE))
    assert "compute.fusible" not in found_in(job.built)
