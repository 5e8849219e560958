"""inference.reparametrized-weights: norms of weights before their layers fire it; norms of activations do not."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, MI300X, Job, is_worth, shaped

CAUSE: Final = "inference.reparametrized-weights"
LAYERS: Final = 20
STEPS: Final = 8
CHANNELS: Final = 256
WEIGHT: Final = [CHANNELS, CHANNELS, 3]
MATRIX: Final = [CHANNELS, CHANNELS * 3]
GAINS: Final = [CHANNELS, 1, 1]
INPUT: Final = [1, CHANNELS, 128]
NORM: Final = "void at::native::(anonymous namespace)::weight_norm_fwd_first_dim_kernel<float, float>"
CONVOLUTION: Final = "void cudnn::cnn::implicit_convolve_sgemm<float, float, 128, 6, 7, 3, 3, 5, 1>"
ELEMENTWISE: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"
FUSED: Final = "triton_per_fused__weight_norm_interface_3"
HOOK: Final = "torch/nn/utils/weight_norm.py(122): __call__"
HOOK_NS: Final = 6_000


def by_weight_norm(job: Job) -> None:
    with job.inside("aten::_weight_norm", **shaped(WEIGHT, GAINS)):
        job.operator("aten::_weight_norm_interface", NORM, 8_000, **shaped(WEIGHT, GAINS))


def without_sizes(job: Job) -> None:
    with job.inside("aten::_weight_norm"):
        job.operator("aten::_weight_norm_interface", NORM, 8_000)


def by_spectral_norm(job: Job) -> None:
    job.operator("aten::reshape", **shaped(WEIGHT))
    job.operator("aten::mv", "gemv2T_kernel_val", 8_000, **shaped(MATRIX, [CHANNELS * 3]))
    job.operator("aten::dot", "dot_kernel", 3_000, **shaped([CHANNELS], [CHANNELS]))
    job.operator("aten::div", ELEMENTWISE, 4_000, **shaped(WEIGHT, []))


def written_out(job: Job) -> None:
    job.operator("aten::linalg_vector_norm", "void at::native::reduce_kernel<512, 1>", 8_000, **shaped(WEIGHT))
    job.operator("aten::clamp_min", ELEMENTWISE, 2_000, **shaped(GAINS))
    job.operator("aten::expand_as", **shaped(GAINS, WEIGHT))
    job.operator("aten::div", ELEMENTWISE, 4_000, **shaped(WEIGHT, WEIGHT))
    job.operator("aten::mul", ELEMENTWISE, 4_000, **shaped(WEIGHT, GAINS))


def modulated(job: Job) -> None:
    """The weight depends on the input: it is multiplied by a style before it is normed."""
    job.operator("aten::mul", ELEMENTWISE, 4_000, **shaped([1, *WEIGHT], [1, 1, CHANNELS, 1]))
    job.operator("aten::linalg_vector_norm", "void at::native::reduce_kernel<512, 1>", 8_000, **shaped([1, *WEIGHT]))
    job.operator("aten::div", ELEMENTWISE, 4_000, **shaped([1, *WEIGHT], [1, CHANNELS, 1, 1]))


def input_normed(job: Job) -> None:
    job.operator("aten::linalg_vector_norm", "void at::native::reduce_kernel<512, 1>", 8_000, **shaped(INPUT))
    job.operator("aten::div", ELEMENTWISE, 8_000, **shaped(INPUT, [1, 1, 128]))


def dequantized(job: Job) -> None:
    job.operator("aten::to", ELEMENTWISE, 4_000, **shaped(WEIGHT, dtype="signed char"))
    job.operator("aten::mul", ELEMENTWISE, 8_000, **shaped(WEIGHT, GAINS))


def nothing(_: Job) -> None:
    pass


def vocoder(
    weight: Any = nothing, *, device: dict[str, Any] | None = A100, trains: bool = False, hooked: bool = False
) -> Job:
    """Steps of convolutions, each of which may compute its weight first; without a device the host does all work."""
    job = Job(device, api="hip" if device is MI300X else "cuda")
    for number in job.steps(STEPS):
        for _ in range(LAYERS):
            begin = job.at
            if hooked:
                job.python(HOOK_NS // 2)
            weight(job)
            if hooked:
                job.python(HOOK_NS // 2)
                job.built.python(HOOK, at=begin, lasts=job.at - begin)
            job.operator("aten::conv1d", CONVOLUTION, 16_000, **shaped(INPUT, WEIGHT, [CHANNELS]))
            job.operator("aten::leaky_relu", ELEMENTWISE, 4_000, **shaped(INPUT))
        if trains:
            job.operator("aten::mm", CONVOLUTION, 5_000, **{"Fwd thread id": 1, "Sequence number": number})
        job.wait()
    return job


@pytest.mark.parametrize("weight", [by_weight_norm, without_sizes, by_spectral_norm, written_out])
@pytest.mark.parametrize("device", [A100, MI300X])
def test_weights_are_worth_what_computes_them(weight: Any, device: dict[str, Any]) -> None:
    job = vocoder(weight, device=device)
    finding = found_in(job.built)[CAUSE]
    is_worth(finding, job.step_ns / vocoder(device=device).step_ns, within=0.1)
    assert finding.evidence[0].value == LAYERS
    assert finding.remedy is not None
    assert "remove_weight_norm" in (finding.remedy.patch or "")


@pytest.mark.parametrize("weight", [by_weight_norm, by_spectral_norm])
def test_the_whole_hook_goes_with_the_weight_that_it_computes(weight: Any) -> None:
    job = vocoder(weight, hooked=True)
    is_worth(found_in(job.built)[CAUSE], job.step_ns / vocoder().step_ns, within=0.05)


def test_without_recorded_python_the_hook_is_a_ceiling() -> None:
    job = Job(A100)
    for _ in job.steps(STEPS):
        for _ in range(LAYERS):
            job.python(HOOK_NS)
            by_weight_norm(job)
            job.operator("aten::conv1d", CONVOLUTION, 16_000, **shaped(INPUT, WEIGHT, [CHANNELS]))
            job.operator("aten::leaky_relu", ELEMENTWISE, 4_000, **shaped(INPUT))
        job.wait()
    gain = found_in(job.built)[CAUSE].gain
    assert gain is not None
    assert gain.expected < job.step_ns / vocoder().step_ns <= gain.ceiling


def test_kernels_that_a_graph_replays_are_known_by_name() -> None:
    def replayed(*kernels: tuple[str, int]) -> Job:
        job = Job(A100)
        for _ in job.steps(STEPS):
            for _ in range(LAYERS):
                for kernel, lasts in kernels:
                    job.launch(kernel, lasts, call="GraphLaunch")
            job.operator("aten::leaky_relu", ELEMENTWISE, 4_000)
            job.wait()
        return job

    job = replayed((FUSED, 8_000), (CONVOLUTION, 16_000))
    is_worth(found_in(job.built)[CAUSE], job.step_ns / replayed((CONVOLUTION, 16_000)).step_ns, within=0.1)


def on_a_cpu(weight: Any) -> Job:
    job = Job()
    for _ in job.steps(STEPS):
        for _ in range(LAYERS):
            weight(job)
            with job.inside("aten::conv1d", **shaped(INPUT, WEIGHT, [CHANNELS])):
                job.python(40_000)
    return job


def test_a_cpu_computes_them_as_well() -> None:
    def weight(job: Job) -> None:
        with job.inside("aten::_weight_norm", **shaped(WEIGHT, GAINS)):
            job.python(15_000)

    job = on_a_cpu(weight)
    is_worth(found_in(job.built)[CAUSE], job.step_ns / on_a_cpu(nothing).step_ns, within=0.1)


@pytest.mark.parametrize("weight", [nothing, modulated, input_normed, dequantized])
def test_other_work_before_a_layer_is_none(weight: Any) -> None:
    assert CAUSE not in found_in(vocoder(weight).built)


@pytest.mark.parametrize("weight", [by_weight_norm, by_spectral_norm])
def test_weights_that_are_learnt_are_computed_for_a_reason(weight: Any) -> None:
    assert CAUSE not in found_in(vocoder(weight, trains=True).built)


def test_a_loading_model_computes_its_weights_once() -> None:
    """Removing weight norm computes each weight once more, and no layer follows."""
    job = Job(A100)
    for _ in range(STEPS):
        for _ in range(LAYERS):
            by_weight_norm(job)
        job.operator("aten::copy_", "Memcpy HtoD (Pageable -> Device)", 10_000)
    for _ in range(STEPS):
        job.operator("aten::conv1d", CONVOLUTION, 16_000, **shaped(INPUT, WEIGHT, [CHANNELS]))
    job.wait()
    assert CAUSE not in found_in(job.built)


def test_keys_that_are_normed_are_no_weights() -> None:
    keys = [1, 8, 4_096, 64]
    job = Job(A100)
    for _ in job.steps(STEPS):
        for _ in range(LAYERS):
            job.operator("aten::linalg_vector_norm", "void at::native::reduce_kernel<512, 1>", 8_000, **shaped(keys))
            job.operator("aten::div", ELEMENTWISE, 8_000, **shaped(keys, [1, 8, 4_096, 1]))
            job.operator("aten::matmul", CONVOLUTION, 16_000, **shaped([1, 8, 1, 64], [1, 8, 64, 4_096]))
        job.wait()
    assert CAUSE not in found_in(job.built)


def test_an_input_of_its_weights_size_is_no_weight() -> None:
    square = [CHANNELS, CHANNELS]
    job = Job(A100)
    for _ in job.steps(STEPS):
        for _ in range(LAYERS):
            job.operator("aten::linalg_vector_norm", "void at::native::reduce_kernel<512, 1>", 8_000, **shaped(square))
            job.operator("aten::div", ELEMENTWISE, 8_000, **shaped(square, square))
            job.operator("aten::linear", CONVOLUTION, 16_000, **shaped(square, square))
        job.wait()
    assert CAUSE not in found_in(job.built)
