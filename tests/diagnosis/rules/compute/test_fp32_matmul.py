"""compute.fp32-matmul: single precision on CUDA cores fires it, by names of any vendor that say so;
TF32 and bf16 do not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import MI300X, Job, is_worth, shaped

import whystall
from whystall.testing import TraceBuilder, trace

A100: Final = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000}
SIZE: Final = 4096
FLOPS: Final = 2 * SIZE**3
FP32_NS: Final = round(FLOPS / (0.8 * 19.5e12) * 1e9)  # at 80 % of the peak without tensor cores
IN_TF32: Final = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x64x32_tensor16x8x8_kernel"
TF32_NS: Final = round(FLOPS / (0.7 * 156e12) * 1e9)  # at 70 % of the peak with them


def products(kernel: str, takes_ns: int, *, dtype: str = "float", shapes: bool = True) -> TraceBuilder:
    """Eight steps of two products of 4096 cubed on an A100."""
    built = trace(deviceProperties=[A100])
    at = 0
    for number in range(8):
        begin, runs = at, at + 10_000
        for _ in range(2):
            more: dict[str, Any] = (
                {"Input Dims": [[SIZE, SIZE], [SIZE, SIZE]], "Input type": [dtype, dtype]} if shapes else {}
            )
            built.operator("aten::mm", at=at + 1_000, lasts=7_000, **more)
            built.launch(kernel, at=at + 3_000, call_lasts=4_000, runs_at=runs, lasts=takes_ns)
            at += 8_000
            runs += takes_ns + 1_000
        built.runtime("cudaDeviceSynchronize", at=at, lasts=runs - at)
        at = runs + 10_000
        built.step(number, at=begin, lasts=at - begin)
    return built


@pytest.mark.parametrize(
    "kernel",
    [
        "ampere_sgemm_128x128_nn",
        "void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(Params)",
        # cuDNN's and cuBLAS' names with "xmma" that compute on CUDA cores
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
        "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x128x8_stage3_warpsize2x2x1_g1_ffma_aligna4_alignc4_execute_kernel__5x_cudnn",
    ],
)
def test_products_without_tensor_cores_are_worth_what_tf32_brings(kernel: str) -> None:
    report = whystall.analyze(products(kernel, FP32_NS).load())
    assert report.efficiency.tensor_core_share == 0
    found = next(one for one in report.findings if one.id == "compute.fp32-matmul")
    assert found.gain is not None
    assert found.gain.floor <= (2 * FP32_NS + 22_000) / (2 * TF32_NS + 22_000) <= found.gain.ceiling


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        (
            "sm80_xmma_gemm_tf32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel",
            "float",
        ),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(Params)", "float"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn", "c10::BFloat16"),
    ],
)
def test_products_on_tensor_cores_are_none(kernel: str, dtype: str) -> None:
    report = whystall.analyze(products(kernel, TF32_NS, dtype=dtype).load())
    assert report.efficiency.tensor_core_share == 1
    assert "compute.fp32-matmul" not in {one.id for one in report.findings}


def test_a_small_product_beside_a_large_one_is_none() -> None:
    built = products("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn", TF32_NS, dtype="c10::BFloat16")
    for number in range(8):  # in the pause between two steps
        built.kernel("ampere_sgemm_32x32_sliced1x4_nn", at=(number + 1) * 2 * (TF32_NS + 11_000) - 5_000, lasts=1_000)
    assert "compute.fp32-matmul" not in found_in(built)


def test_without_shapes_names_tell_it_and_less_surely() -> None:
    report = whystall.analyze(products("ampere_sgemm_128x128_nn", FP32_NS, shapes=False).load())
    [found] = [one for one in report.findings if one.id == "compute.fp32-matmul"]
    sure = whystall.analyze(products("ampere_sgemm_128x128_nn", FP32_NS).load()).findings[0]
    assert found.missing_signals == ["operator shapes"]
    assert found.confidence < sure.confidence
    assert found.gain is not None
    assert found.gain.floor < (2 * FP32_NS + 22_000) / (2 * TF32_NS + 22_000) <= found.gain.ceiling


@pytest.mark.parametrize("kernel", ["sm80_xmma_gemm_tf32f32_tf32f32_f32_tensor16x8x8_kernel", "nobody_knows_this"])
def test_without_shapes_other_names_tell_nothing(kernel: str) -> None:
    assert "compute.fp32-matmul" not in found_in(products(kernel, FP32_NS, shapes=False))


@pytest.mark.parametrize(
    ("tflops", "dtype", "told"),
    [
        (130, "float", True),
        (400, "float", False),  # of fewer digits: XF32
        (600, "c10::BFloat16", False),
    ],
)
def test_amds_matrix_units_take_single_precision_at_an_eighth(tflops: float, dtype: str, told: bool) -> None:
    """An MI300X has a peak of 163.4 TFLOP/s in single precision and of 1,307.4 in 16 bits."""
    job, size = Job(MI300X, api="hip"), 4096
    lasts, fast = (round(2 * size**3 / (rate * 1e12) * 1e9) for rate in (tflops, 0.7 * 1307.4))
    for _ in job.steps(8):
        for _ in range(3):
            square = shaped([size, size], [size, size], dtype=dtype)
            job.operator("aten::mm", "Cijk_Alik_Bljk_S_B_Bias_HA_S_SAV_MT256x128x16_MI16x16x1_SN", lasts, **square)
        job.wait()
    found = found_in(job.built)
    assert ("compute.fp32-matmul" in found) == told
    if told:
        is_worth(found["compute.fp32-matmul"], job.step_ns / (job.step_ns - 3 * (lasts - fast)), within=0.1)
        assert "bfloat16" in str(found["compute.fp32-matmul"].remedy)


@pytest.mark.parametrize(("halves", "told"), [(6, True), (0, False)])
def test_tf32_is_a_loss_where_the_rest_is_in_16_bits(halves: int, *, told: bool) -> None:
    """A part that was left in float32: an A100 has a peak of 156 TFLOP/s in TF32 and of 312 in 16 bits."""
    job, lasts = Job(A100), round(FLOPS / (0.75 * 156e12) * 1e9)
    fast = round(FLOPS / (0.7 * 312e12) * 1e9)
    for _ in job.steps(8):
        for _ in range(4):
            square = shaped([SIZE, SIZE], [SIZE, SIZE], dtype="float")
            job.operator("aten::mm", "ampere_tf32_s1688gemm_tf32_128x128_ldg8_f2f_stages_32x3_nn", lasts, **square)
        for _ in range(halves):
            square = shaped([SIZE, SIZE], [SIZE, SIZE], dtype="c10::Half")
            job.operator("aten::mm", "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_nn", fast, **square)
        job.wait()
    found = found_in(job.built)
    assert ("compute.fp32-matmul" in found) == told
    if told:
        is_worth(found["compute.fp32-matmul"], job.step_ns / (job.step_ns - 4 * (lasts - fast)), within=0.1)
        assert "upcast_vae" in str(found["compute.fp32-matmul"].remedy)


@pytest.mark.parametrize(
    ("setting", "beside", "allowed"),
    [
        ("True", False, True),
        ("False", False, False),
        ("False", True, False),  # the argument decides, where it is recorded
        ("", False, False),
        ("", True, True),
    ],
)
def test_convolutions_may_use_tf32_by_default(setting: str, *, beside: bool, allowed: bool) -> None:
    """Where it is allowed, cuDNN chose kernels without it: no setting of TF32 changes that."""
    job = Job(A100)
    called = shaped([256, 64, 56, 56], [64, 64, 3, 3], *[[]] * 11)
    computed = shaped([256, 64, 56, 56], [64, 64, 3, 3], *[[]] * 7)
    pairs = ["[1, 1]"] * 3
    if setting:
        called["Concrete Inputs"] = ["", "", "", *pairs, "False", "[0, 0]", "1", "False", "False", "True", setting]
    computed["Concrete Inputs"] = ["", "", *pairs, "1", "False", "False", ""]
    kernels = [("implicit_convolve_sgemm<float, 128, 5>", 6_000_000)] * 4 + [(IN_TF32, 1_500_000)] * beside
    for _ in job.steps(8):
        for kernel, takes_ns in kernels:
            with job.inside("aten::_convolution", **called):
                job.operator("aten::cudnn_convolution", kernel, takes_ns, **computed)
        job.wait()
    found = told_of(job.built)["compute.fp32-matmul"]
    assert ("TF32 is allowed for convolutions in this job" in str(found.remedy)) == allowed
    assert found.gain is not None
    assert (found.gain.floor == 1.0) == allowed
    if not allowed:
        assert "cudnn.allow_tf32 = True" in str(found.remedy)
