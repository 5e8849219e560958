"""compute.zeroed-gradients: gradients filled with zeros fire it, on both kinds of job; dropped ones do not.

Other things that are filled with zeros do not either.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.conftest import RealTraces
from tests.diagnosis.cases import case_of, found_in
from tests.diagnosis.jobs import Job, is_worth

from whystall.diagnosis.rules.compute import zeroed_gradients
from whystall.testing import TraceBuilder, trace

CAUSE: Final = "compute.zeroed-gradients"
PARAMETERS: Final = 100
CUDA: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, Array<char*, 1>>"
HIP: Final = "void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<float>, Array<char*, 1>>(int)"
ADD: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def job(
    *,
    mark: str = "Optimizer.zero_grad#SGD.zero_grad",
    fill: str = "aten::zero_",
    fills: int = PARAMETERS,
    kernel: str = CUDA,
    api: str = "cuda",
    passes: int = 1,
) -> tuple[TraceBuilder, float]:
    """Training that is late on the host: a zero_grad, passes that add to each gradient, and a wait."""
    told = Job(api=api)
    for _ in told.steps(8):
        with told.marked(mark):
            for _ in range(fills):
                with told.inside(fill):
                    told.operator("aten::fill_", kernel, 2_000)
        for _ in range(passes):
            told.operator("aten::mm", "gemm", 500_000)
            for _ in range(PARAMETERS):
                with told.inside("torch::autograd::AccumulateGrad"):
                    if fills:
                        told.operator("aten::add_", ADD, 2_000)
        told.wait()
    return told.built, told.step_ns


@pytest.mark.parametrize(("kernel", "api"), [(CUDA, "cuda"), (HIP, "hip")])
def test_gradients_that_are_filled_one_by_one(kernel: str, api: str) -> None:
    built, filled = job(kernel=kernel, api=api)
    finding = found_in(built)[CAUSE]
    is_worth(finding, filled / job(fills=0)[1], within=0.1)
    assert finding.evidence[0].value == PARAMETERS
    assert finding.remedy is not None
    assert "set_to_none=True" in str(finding.remedy.patch)


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(job(fills=0)[0], id="dropped"),
        pytest.param(job(fills=2)[0], id="two-of-them"),
        pytest.param(job(mark="## zero_grad ##")[0], id="a-mark-of-the-users-own"),
        pytest.param(job(fill="aten::zeros")[0], id="tensors-that-are-made"),
    ],
)
def test_what_is_not_filled_by_an_optimizer(built: TraceBuilder) -> None:
    assert CAUSE not in found_in(built)


def test_later_passes_add_to_what_is_no_zero() -> None:
    """Of four backward passes before a fill the first one alone would be spared its additions."""
    whole = 4 * PARAMETERS * 2_000
    (one,) = zeroed_gradients.in_trace(case_of(job(passes=4)[0]))
    assert one.evidence[2].value == pytest.approx(whole / 4, rel=0.01)


def test_of_a_fill_of_all_at_once_no_addition_is_counted() -> None:
    (one,) = zeroed_gradients.in_trace(case_of(job(fill="aten::_foreach_zero_", fills=1)[0]))
    assert one.evidence[2].value == 0


def on_a_cpu(*, fills: int) -> TraceBuilder:
    """The same where the operators themselves take the time."""
    built = trace()
    at = 0
    for number in range(8):
        begin = at
        built.annotation("Optimizer.zero_grad#AdamW.zero_grad", at=at, lasts=fills * 12_000 + 1_000)
        for _ in range(fills):
            built.operator("aten::zero_", at=at + 500, lasts=11_000)
            at += 12_000
        at += 1_000
        built.operator("aten::mm", at=at, lasts=2_000_000)
        at += 2_001_000
        for _ in range(PARAMETERS):
            built.operator("torch::autograd::AccumulateGrad", at=at, lasts=16_000)
            built.operator("aten::add_" if fills else "aten::detach", at=at + 1_000, lasts=13_000)
            at += 16_500
        built.step(number, at=begin, lasts=at - begin)
    return built


def test_a_job_without_an_accelerator() -> None:
    finding = found_in(on_a_cpu(fills=PARAMETERS))[CAUSE]
    whole = PARAMETERS * (12_000 + 16_500) + 2_002_000
    is_worth(finding, whole / (whole - PARAMETERS * 23_000))
    assert CAUSE not in found_in(on_a_cpu(fills=0))


@pytest.mark.real_traces
@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("resnet50-workers4-v100.json.gz", 161),
        ("recsys-2rank-v100.json.gz", 404),
        ("cnn-v100-ns.json.gz", None),
        ("ddp-2rank-a100.json.gz", None),
    ],
)
def test_recorded_jobs(name: str, tensors: int | None, real_traces: RealTraces) -> None:
    """ResNet-50 of torch 1.8 filled; what newer versions recorded dropped them."""
    found = [finding for finding in real_traces.report(name).findings if finding.id == CAUSE]
    assert [finding.evidence[0].value for finding in found] == ([tensors] if tensors else [])
