"""compute.low-tensor-core: 16-bit products on scalar units fire it, on any vendor; those on matrix units do not."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, GAP_NS, MI300X, V100, Job, is_worth, shaped

SIZE: Final = 4096
FLOPS: Final = 2 * SIZE**3
RTX_3090: Final = {"id": 0, "name": "NVIDIA GeForce RTX 3090", "computeMajor": 8, "computeMinor": 6}
REACHED: Final = 0.7  # of the peak, by good kernels (reference: causes.md, eta)


def nanoseconds(tflops: float, share: float = REACHED) -> int:
    """What the product takes at a share of a peak."""
    return round(FLOPS / (share * tflops * 1e12) * 1e9)


def products(device: dict[str, Any], kernel: str, lasts: int, *, dtype: str, api: str = "cuda") -> Job:
    """Eight steps of three products of 4096 cubed, of which one is on tensor cores."""
    job = Job(device, api=api)
    square = shaped([SIZE, SIZE], [SIZE, SIZE], dtype=dtype)
    for _ in job.steps(8):
        job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", nanoseconds(312), **square)
        for _ in range(2):
            job.operator("aten::mm", kernel, lasts, **square)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("device", "api", "kernel", "dtype", "scalar", "peak"),
    [
        (A100, "cuda", "void cutlass::Kernel<cutlass_80_simt_hgemm_128x128_8x4_nn_align1>", "c10::Half", 19.5, 312),
        (A100, "cuda", "void gemmSN_NN_kernel<float, 256, 4, 2, 8, 5, 4, false>", "c10::BFloat16", 19.5, 312),
        (V100, "cuda", "volta_sgemm_128x64_nn", "float", 15.7, 125),  # the device has no TF32
        (MI300X, "hip", "Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_SE_1LDSB0_TT8_8_WG16_16_1", "c10::Half", 163.4, 1307.4),
    ],
)
def test_products_on_scalar_units_are_worth_what_matrix_units_bring(
    device: dict[str, Any], api: str, kernel: str, dtype: str, scalar: float, peak: float
) -> None:
    slow, fast = nanoseconds(scalar, 0.8), nanoseconds(peak)
    job = products(device, kernel, slow, dtype=dtype, api=api)
    finding = found_in(job.built)["compute.low-tensor-core"]
    is_worth(finding, job.step_ns / (job.step_ns - 2 * (slow - fast)), within=0.1)
    assert finding.severity == "critical"
    # 16 bits need no autocast; a V100's tensor cores take no bfloat16
    assert finding.remedy is not None
    assert (finding.remedy.patch is None) == (dtype != "float")
    assert "bfloat16" not in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    ("device", "kernel", "dtype"),
    [
        (A100, "void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_nn_align8>", "c10::BFloat16"),
        (A100, "void cutlass::Kernel<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>", "float"),  # is compute.fp32-matmul
        (V100, "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", "c10::Half"),
        (MI300X, "Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1_SE_1LDSB0", "c10::Half"),
        (A100, "void cutlass::Kernel<cutlass_80_simt_dgemm_64x64_8x4_nn_align1>", "double"),  # no 16 bits would do
    ],
)
def test_products_on_matrix_units_or_in_other_precisions_are_none(
    device: dict[str, Any], kernel: str, dtype: str
) -> None:
    assert "compute.low-tensor-core" not in found_in(products(device, kernel, nanoseconds(19.5), dtype=dtype).built)


def test_a_product_of_one_row_is_bound_by_memory_and_gains_nothing() -> None:
    """A matrix times a vector reads the matrix once: no arithmetic unit makes that faster."""
    job = Job(A100)
    read_ns = round(2 * 8192 * 8192 / (0.85 * 2039e9) * 1e9)
    for _ in job.steps(8):
        for _ in range(8):
            shapes = shaped([1, 8192], [8192, 8192], dtype="c10::Half")
            job.operator("aten::mm", "void gemv2T_kernel_val<int, int, __half, __half, float>", read_ns, **shapes)
        job.wait()
    assert job.step_ns > 8 * (read_ns + GAP_NS)
    assert "compute.low-tensor-core" not in found_in(job.built)


@pytest.mark.parametrize(
    ("before", "patch"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>", "torch.autocast"),
        ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 1>(float*, unsigned char*, float*)", "bnb_4bit"),
    ],
)
def test_single_precision_where_tf32_is_no_faster_is_worth_what_16_bits_bring(before: str, patch: str) -> None:
    """A GeForce RTX 3090 has a peak of 35.6 TFLOP/s in single precision and in TF32, and of 71 in 16 bits."""
    job = Job(RTX_3090)
    slow, fast = nanoseconds(35.6, 0.8), nanoseconds(71)
    for _ in job.steps(8):
        job.launch(before, 100_000)
        for _ in range(3):
            job.operator(
                "aten::mm", "ampere_sgemm_128x64_tn", slow, **shaped([SIZE, SIZE], [SIZE, SIZE], dtype="float")
            )
        job.wait()
    found = found_in(job.built)
    is_worth(found["compute.low-tensor-core"], job.step_ns / (job.step_ns - 3 * (slow - fast)), within=0.1)
    assert "compute.fp32-matmul" not in found
    remedy = found["compute.low-tensor-core"].remedy
    assert remedy is not None
    assert patch in (remedy.patch or "")
