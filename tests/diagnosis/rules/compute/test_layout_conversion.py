"""compute.layout-conversion: kernels that only reorder fire it, by any library's name;
layouts in other names do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.detectors.recordings import found_in as found_in_recording
from tests.diagnosis.detectors.recordings import told_in
from tests.diagnosis.jobs import H100, Job, is_worth, shaped

CONVOLUTION: Final = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x16_cudnn"
CONVOLUTION_NS: Final = 300_000


def network(
    kernel: str, lasts: int, *, times: int = 2, operator: str = "aten::cudnn_convolution", api: str = "cuda"
) -> Job:
    """Eight steps of two convolutions of 300 us, with another kernel before and after the second."""
    job = Job(api=api)
    for _ in job.steps(8):
        job.operator("aten::cudnn_convolution", CONVOLUTION, CONVOLUTION_NS)
        for _ in range(times // 2):
            job.operator(operator, kernel, lasts)
        job.operator("aten::cudnn_convolution", CONVOLUTION, CONVOLUTION_NS)
        for _ in range(times // 2):
            job.operator(operator, kernel, lasts)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("kernel", "api"),
    [
        ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>", "cuda"),
        ("void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>(int)", "cuda"),
        ("batched_transpose_32x32_dword", "hip"),  # MIOpen
        ("batched_transpose_64x32_pack_2x2_ediv_2x1_half", "hip"),
    ],
)
def test_conversions_are_worth_their_time(kernel: str, api: str) -> None:
    job = network(kernel, 150_000, api=api)
    finding = found_in(job.built)["compute.layout-conversion"]
    is_worth(finding, job.step_ns / (job.step_ns - 2 * 150_000))


@pytest.mark.parametrize(
    ("kernel", "reorders"),
    [
        ("triton_poi_fused_clone_permute_7", True),
        ("triton_poi_fused_clone_transpose_view_3", True),
        ("triton_poi_fused__unsafe_view_addmm_cat_clone_gelu_transpose_view_26", False),
        ("triton_red_fused_add_mean_mul_pow_rsqrt_transpose_5", False),
        ("triton_poi_fused_mul_transpose_unheard_of_9", False),
    ],
)
def test_a_compiled_kernel_that_computes_as_well_is_no_conversion(kernel: str, *, reorders: bool) -> None:
    """Inductor names all that it fused, the views of what it reads among it."""
    job = network(kernel, 150_000, operator=kernel)
    assert ("compute.layout-conversion" in found_in(job.built)) is reorders


def test_a_name_by_itself_is_less_sure_than_an_operator_that_copies() -> None:
    kernel = "void acme::transpose<float>(float*)"
    asked, named = (
        found_in(network(kernel, 150_000, operator=operator).built)["compute.layout-conversion"]
        for operator in ("aten::copy_", "acme::layer")
    )
    assert named.confidence <= 0.6 < asked.confidence


def test_the_copy_of_contiguous_is_a_conversion() -> None:
    """Its kernel has the name of any copy: what tells is the operator around it."""
    job = Job(api="cuda")
    copy = (
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda>>"
    )
    for _ in job.steps(8):
        job.operator("aten::mm", "ampere_sgemm_128x128_nn", CONVOLUTION_NS)
        begin = job.at
        job.python(1_000)
        job.operator("aten::clone")
        job.built.operator("aten::copy_", at=job.at, lasts=10_000)
        job.python(2_000)
        job.launch(copy, 200_000)
        job.python(4_000)
        job.built.operator("aten::contiguous", at=begin, lasts=job.at - begin)
        job.operator("aten::convolution", CONVOLUTION, CONVOLUTION_NS)
        job.wait()
    is_worth(found_in(job.built)["compute.layout-conversion"], job.step_ns / (job.step_ns - 200_000))


@pytest.mark.parametrize(
    ("kernel", "lasts"),
    [
        ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float>", 5_000),  # below two per cent
        (CONVOLUTION, 150_000),  # the layout that it works in is part of the name
        ("ampere_sgemm_128x128_tn", 150_000),  # reads a transposed matrix as it is
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", 150_000),
        ("void at::native::(anonymous namespace)::max_pool_forward_nhwc<float, int>", 150_000),
    ],
)
def test_small_conversions_and_kernels_that_compute_in_a_layout_are_none(kernel: str, lasts: int) -> None:
    assert "compute.layout-conversion" not in found_in(network(kernel, lasts).built)


def test_a_network_in_one_layout_has_none() -> None:
    assert "compute.layout-conversion" not in found_in(network("", 0, times=0).built)


def strided(*strides: list[int]) -> dict[str, Any]:
    return {"Input Strides": list(strides)}


TOKENS: Final = [128, 256, 768]
ROWS: Final = [196_608, 768, 1]
TURNED: Final = [196_608, 1, 256]
COPY_NS: Final = 160_000
SUM_NS: Final = 155_000
MOVED_NS: Final = 3 * 128 * 256 * 768 * 4 / 3350 / 0.85
"""What a sum of such tensors of float takes where it moves bytes as copies do: reads two, and writes one."""


def carried(
    first: list[int] = TURNED, second: list[int] = ROWS, *, added: list[int] = TOKENS, named: str = "aten::add"
) -> Job:
    """Eight steps of sums x + f(x), where x is a convolution's output that was turned around, and copies for norms."""
    job = Job(H100)
    sums: dict[str, Any] = {
        "Input Dims": [added, added, []],
        "Input type": ["float", "float", "Scalar"],
        "Input Strides": [first, second, []],
    }
    for _ in job.steps(8):
        job.operator("aten::cudnn_convolution", CONVOLUTION, CONVOLUTION_NS)
        for _ in range(2):
            copied = shaped(TOKENS, TOKENS) | strided(ROWS, TURNED)
            with job.inside("aten::contiguous"), job.inside("aten::clone"):
                job.operator("aten::copy_", "elementwise_kernel<128, 4, direct_copy_kernel_cuda>", COPY_NS, **copied)
            job.operator("aten::addmm", "ampere_sgemm_128x128_nn", CONVOLUTION_NS)
            job.operator(named, "elementwise_kernel<128, 4, CUDAFunctor_add<float>>", SUM_NS, **sums)
        job.wait()
    return job


def test_a_layout_that_sums_carry_on_costs_the_sums_as_well() -> None:
    """Seen in a vision transformer without a class token: its patches stay turned around through all blocks."""
    job = carried()
    finding = found_in(job.built)["compute.layout-conversion"]
    is_worth(finding, job.step_ns / (job.step_ns - 2 * COPY_NS - 2 * (SUM_NS - MOVED_NS)))
    assert [fact.value for fact in finding.evidence] == [
        2 * COPY_NS, 2, 2 * SUM_NS, pytest.approx(2 * MOVED_NS, rel=0.01),
        pytest.approx(2 * (SUM_NS - MOVED_NS), rel=0.01),  # what is saved beyond the copies themselves
    ]  # fmt: skip
    assert finding.gain is not None
    assert finding.gain.floor <= job.step_ns / (job.step_ns - 0.7 * 2 * COPY_NS)
    assert finding.remedy is not None
    assert "x.flatten(2).transpose(1, 2).contiguous()" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(carried(ROWS, TURNED), id="what-is-turned-back-takes-over-the-rows"),
        pytest.param(carried(ROWS, ROWS), id="in-one-layout"),
        pytest.param(carried(TURNED, TURNED), id="in-one-layout-both-turned"),
        pytest.param(carried([98_304, 1, 128], [98_304, 768, 1], added=[128, 128, 768]), id="of-another-size"),
        pytest.param(carried(named="aten::native_layer_norm"), id="no-sum"),
    ],
)
def test_sums_that_do_not_carry_what_is_copied_count_for_nothing(job: Job) -> None:
    finding = found_in(job.built)["compute.layout-conversion"]
    is_worth(finding, job.step_ns / (job.step_ns - 2 * COPY_NS))
    assert "sums" not in str([fact.what for fact in finding.evidence])
    assert finding.remedy is not None
    assert "flatten" not in (finding.remedy.patch or "")


FIRST: Final = [49152, 1024, 32, 1]
LAST: Final = [49152, 1, 1536, 48]


def on_a_cpu(to: list[int], source: list[int], *, convolves: bool = True) -> Job:
    """Eight steps of which half is a copy of images."""
    job = Job()
    for _ in job.steps(8):
        with job.inside("aten::convolution" if convolves else "aten::addmm"):
            job.python(CONVOLUTION_NS)
        with job.inside(
            "aten::copy_",
            **shaped([8, 48, 32, 32], [8, 48, 32, 32]),
            **strided(to, source),
        ):
            job.python(CONVOLUTION_NS)
    return job


@pytest.mark.parametrize(("to", "source"), [(FIRST, LAST), (LAST, FIRST)])
def test_copies_into_another_order_on_a_cpu(to: list[int], source: list[int]) -> None:
    finding = found_in(on_a_cpu(to, source).built)["compute.layout-conversion"]
    assert finding.remedy is not None
    assert "channels_last" in (finding.remedy.patch or "")
    is_worth(finding, 2.0)


def test_copies_beside_other_work_name_no_memory_format() -> None:
    finding = found_in(on_a_cpu(FIRST, LAST, convolves=False).built)["compute.layout-conversion"]
    assert finding.remedy is not None
    assert "channels_last" not in finding.remedy.text


def test_copies_that_a_convolution_makes_itself_are_not_the_jobs() -> None:
    job = Job()
    for _ in job.steps(8):
        with job.inside("aten::convolution"):
            job.python(CONVOLUTION_NS)
            images = shaped([8, 48, 32, 32], [8, 48, 32, 32])
            with job.inside("aten::copy_", **images, **strided(FIRST, LAST)):
                job.python(CONVOLUTION_NS)
    assert "compute.layout-conversion" not in found_in(job.built)


@pytest.mark.parametrize("source", [FIRST, [0, 1024, 32, 1], [98304, 1024, 32, 1]])
def test_copies_in_the_same_order_of_one_for_all_and_of_a_part_are_none(source: list[int]) -> None:
    assert "compute.layout-conversion" not in found_in(on_a_cpu(FIRST, source).built)


def convolving(
    weight: list[int], strides: list[int], *, given: tuple[int, ...] = (8, 48, 32, 32), dtype: str = "float"
) -> Job:
    """Eight steps of which three fifths are a convolution and its backward pass."""
    job, sizes = Job(), [*given]
    for _ in job.steps(8):
        forward = shaped(sizes, weight, dtype=dtype)
        concrete: dict[str, Any] = {"Concrete Inputs": [""] * 9}
        with job.inside("aten::mkldnn_convolution", **forward, **strided(strides, [1] * len(weight)), **concrete):
            job.python(CONVOLUTION_NS)
        with job.inside("aten::addmm"):
            job.python(2 * CONVOLUTION_NS)
        backward = shaped(sizes, sizes, weight, dtype=dtype)
        with job.inside("aten::convolution_backward", **backward, **strided(strides, strides, [1] * len(weight))):
            job.python(2 * CONVOLUTION_NS)
    return job


DEPTHWISE, POINTWISE = [48, 1, 3, 3], [96, 48, 1, 1]


def test_convolutions_that_do_little_with_what_they_reorder() -> None:
    finding = found_in(convolving(DEPTHWISE, FIRST).built)["compute.layout-conversion"]
    assert finding.remedy is not None
    assert "channels_last" in (finding.remedy.patch or "")
    assert finding.gain is not None
    # between two fifths and nine tenths of the convolutions' three fifths are left (benchmarks/bench_layouts.py)
    assert 1.0 < finding.gain.floor <= 1 / (0.4 + 0.6 * 0.75)
    assert 1 / (0.4 + 0.6 * 0.9) < finding.gain.expected < 1 / (0.4 + 0.6 * 0.4)


@pytest.mark.parametrize(("side", "left"), [(13, 0.65), (14, 0.05), (31, 0.05)])
def test_large_depthwise_kernels_are_slow_forward_with_channels_first(side: int, left: float) -> None:
    """Of ten parts two are the forward pass, four the backward pass, of which 0.65 is left whatever the kernel."""
    finding = found_in(convolving([48, 1, side, side], FIRST).built)["compute.layout-conversion"]
    is_worth(finding, 1 / (0.4 + 0.2 * left + 0.4 * 0.65))


@pytest.mark.parametrize(
    ("weight", "strides", "given", "dtype"),
    [
        ([48, 48, 3, 3], FIRST, (8, 48, 32, 32), "float"),  # a dense one works long on each number
        (POINTWISE, FIRST, (8, 48, 32, 32), "float"),  # gains nothing by itself
        (DEPTHWISE, LAST, (8, 48, 32, 32), "float"),
        ([48, 1, 15, 15], LAST, (8, 48, 32, 32), "float"),
        (DEPTHWISE, [48, 1, 1, 1], (8, 48, 1, 1), "float"),  # one place: both orders are one
        ([16, 1, 3, 3], [1024, 1024, 32, 1], (8, 1, 32, 32), "float"),  # one channel
        ([96, 12, 3, 3], FIRST, (8, 48, 32, 32), "float"),  # groups of twelve: not measured
        (DEPTHWISE, FIRST, (8, 48, 32, 32), "double"),
        ([48, 1, 9], [1536, 32, 1], (8, 48, 32), "float"),  # of signals there is no such order
    ],
)
def test_convolutions_that_do_not_reorder_or_do_much(
    weight: list[int], strides: list[int], given: tuple[int, ...], dtype: str
) -> None:
    assert "compute.layout-conversion" not in found_in(convolving(weight, strides, given=given, dtype=dtype).built)


def test_real_convolutions_are_told_in_one_order_and_not_in_the_other(tmp_path: Path) -> None:
    """The names, sizes, strides and types are those that torch writes."""
    torch = pytest.importorskip("torch")
    layer, images = torch.nn.Conv2d(64, 64, 3, padding=1, groups=64), torch.randn(8, 64, 56, 56)
    for order in (torch.contiguous_format, torch.channels_last):
        given = images.to(memory_format=order).requires_grad_()
        layer.to(memory_format=order)

        def step(given: object = given) -> None:
            layer(given).mean().backward()

        if order == torch.contiguous_format:
            told_in(step, tmp_path, lambda found: found.get("compute.layout-conversion"))
        else:
            assert "compute.layout-conversion" not in found_in_recording(step, tmp_path)


@pytest.mark.parametrize(("sizes", "channels"), [([128, 2048, 4096], False), ([8, 64, 56, 56], True)])
def test_only_copies_of_pictures_are_told_a_memory_format(sizes: list[int], *, channels: bool) -> None:
    """A report advised channels_last for permuted logits, in a model with a convolution over time."""
    job = Job(H100)
    for _ in job.steps(8):
        job.operator("aten::convolution", CONVOLUTION, CONVOLUTION_NS, **shaped([8, 64, 56, 56], [64, 64, 3, 3]))
        with job.inside("aten::contiguous"):
            job.operator("aten::copy_", "void at::native::elementwise_kernel<128, 4>", 200_000, **shaped(sizes, sizes))
        job.wait()
    finding = found_in(job.built)["compute.layout-conversion"]
    assert finding.remedy is not None
    assert ("channels_last" in finding.remedy.text) is channels
    assert str(sizes) in str(finding.evidence)


def test_a_triton_kernel_called_a_convolution_makes_no_memory_format() -> None:
    job = Job(H100)
    for _ in job.steps(8):
        job.operator("triton::causal_conv1d_fwd_kernel", "causal_conv1d_fwd_kernel", CONVOLUTION_NS)
        with job.inside("aten::contiguous"):
            job.operator("aten::copy_", "void at::native::elementwise_kernel<128, 4>", 200_000)
        job.wait()
    remedy = found_in(job.built)["compute.layout-conversion"].remedy
    assert remedy is not None
    assert "channels_last" not in remedy.text
