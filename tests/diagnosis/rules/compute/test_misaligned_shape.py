"""compute.misaligned-shape: a 16-bit product of odd sizes that is slower than the others fires it;
an even one does not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, H100, MI300X, Job, is_worth, shaped

ROWS: Final = 4096
INNER: Final = 4096
COST: Final = 1.46  # what an odd size costs (reference: causes.md, 10922 to 10944)
KERNEL: Final = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"


def nanoseconds(columns: int, *, tflops: float = 200) -> int:
    """What a product of so many columns takes at a rate."""
    return round(2 * ROWS * INNER * columns / (tflops * 1e12) * 1e9)


def step(
    columns: int,
    lasts: int,
    *,
    dtype: str = "c10::BFloat16",
    operator: str = "aten::mm",
    kernel: str = KERNEL,
    device: dict[str, Any] = A100,
    api: str = "cuda",
) -> Job:
    """Eight steps of two products of even sizes at 200 TFLOP/s, and one of a given number of columns."""
    job = Job(device, api=api)
    for _ in job.steps(8):
        for _ in range(2):
            job.operator("aten::mm", kernel, nanoseconds(4096), **shaped([ROWS, INNER], [INNER, 4096], dtype=dtype))
        sizes = [[ROWS, INNER], [INNER, columns]]
        if operator == "aten::addmm":
            sizes = [[columns], *sizes]
        job.operator(operator, kernel, lasts, **shaped(*sizes, dtype=dtype))
        job.wait()
    return job


@pytest.mark.parametrize(
    ("operator", "dtype", "kernel", "device", "api"),
    [
        ("aten::mm", "c10::BFloat16", KERNEL, A100, "cuda"),
        ("aten::addmm", "c10::Half", "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_kernel", A100, "cuda"),
        ("aten::addmm", "c10::BFloat16", "nvjet_tst_128x256_64x4_1x2_h_bz_TNT", H100, "cuda"),
        ("aten::mm", "c10::BFloat16", "Cijk_Alik_Bljk_BBS_BH_MT256x128x64_MI16x16x1_SN_LDSB1", MI300X, "hip"),
    ],
)
def test_an_odd_product_is_worth_the_rate_of_the_even_ones(
    operator: str, dtype: str, kernel: str, device: dict[str, Any], api: str
) -> None:
    slow, fast = round(nanoseconds(10922) * COST), nanoseconds(10922)
    job = step(10922, slow, operator=operator, dtype=dtype, kernel=kernel, device=device, api=api)
    finding = found_in(job.built)["compute.misaligned-shape"]
    is_worth(finding, job.step_ns / (job.step_ns - (slow - fast)))


@pytest.mark.parametrize(
    ("columns", "slower", "dtype"),
    [
        (10944, COST, "c10::BFloat16"),  # slow for another reason: the size is a multiple of 64
        (10936, COST, "c10::BFloat16"),  # a multiple of 8 and no more
        (10922, 1.02, "c10::BFloat16"),  # odd, and hardly slower
        (10922, COST, "float"),  # not of 16 bits
        (1, COST, "c10::BFloat16"),  # a vector, which nobody would pad
    ],
)
def test_even_sizes_and_odd_ones_that_cost_nothing_are_none(columns: int, slower: float, dtype: str) -> None:
    job = step(columns, round(nanoseconds(columns) * slower), dtype=dtype)
    assert "compute.misaligned-shape" not in found_in(job.built)


def products(
    one: list[int], other: list[int], strides: list[list[int]] | None = None, *, lasts: float = COST
) -> set[str]:
    """The causes of eight steps of even products, and one of these sizes that is slower."""
    job = Job(A100)
    more: dict[str, Any] = {} if strides is None else {"Input Strides": strides}
    flops_ns = 2 * one[0] * one[1] * other[1] / 200e12 * 1e9
    for _ in job.steps(8):
        for _ in range(2):
            job.operator(
                "aten::mm", KERNEL, nanoseconds(4096), **shaped([ROWS, INNER], [INNER, 4096], dtype="c10::Half")
            )
        job.operator("aten::mm", KERNEL, round(flops_ns * lasts), **shaped(one, other, dtype="c10::Half"), **more)
        job.wait()
    return set(found_in(job.built))


@pytest.mark.parametrize(
    ("one", "other", "strides"),
    [
        ([4099, INNER], [INNER, 4096], None),  # a batch of odd size: no row begins elsewhere for it
        ([4099, INNER], [INNER, 4096], [[INNER, 1], [1, INNER]]),
        ([INNER, 4099], [4099, 4096], None),  # the gradient of a weight adds up over it
        ([INNER, 4099], [4099, 4096], [[1, INNER], [4096, 1]]),
        ([ROWS, 4094], [4094, 4096], [[4096, 1], [4096, 1]]),  # a part of rows of even length
    ],
)
def test_the_number_of_a_batchs_rows_is_free(one: list[int], other: list[int], strides: list[list[int]] | None) -> None:
    assert "compute.misaligned-shape" not in products(one, other, strides)


@pytest.mark.parametrize(
    ("one", "other", "strides"),
    [
        ([ROWS, INNER], [INNER, 10922], [[INNER, 1], [1, INNER]]),  # the product's rows
        ([ROWS, 10922], [10922, 4096], [[10922, 1], [1, 10922]]),  # those of the first matrix, and of a weight
        ([INNER, ROWS], [ROWS, 4096], [[1, 10922], [4096, 1]]),  # those of a matrix that is read transposed
    ],
)
def test_rows_that_begin_at_odd_places_are_slow(one: list[int], other: list[int], strides: list[list[int]]) -> None:
    assert "compute.misaligned-shape" in products(one, other, strides)


def test_where_all_are_odd_the_reference_says_what_it_costs() -> None:
    job = Job(A100)
    lasts = round(nanoseconds(10922) * COST)
    for _ in job.steps(8):
        job.operator("aten::mm", KERNEL, lasts, **shaped([ROWS, INNER], [INNER, 10922], dtype="c10::Half"))
        job.wait()
    is_worth(found_in(job.built)["compute.misaligned-shape"], job.step_ns / (job.step_ns - lasts * (1 - 1 / COST)))


def transforms(length: int, *, operator: str = "aten::_fft_r2c", lasts: int = 6_000_000) -> Job:
    """Eight steps of a Fourier transform on a CPU, and 4 ms of other work."""
    job = Job()
    last: dict[str, list[Any]] = {"aten::_fft_c2r": ["", "[1]", "2", str(length)]}
    places = length // 2 + 1 if operator == "aten::_fft_c2r" else length
    given: dict[str, Any] = {
        "Input Dims": [[64, places], [], [], []],
        "Input type": ["float", "ScalarList", "Scalar", "Scalar"],
        "Concrete Inputs": last.get(operator, ["", "[1]", "0", "True"]),
    }
    for _ in job.steps(8):
        with job.inside(operator, **given):
            job.python(lasts)
        with job.inside("aten::relu", **shaped([64, 128])):
            job.python(4_000_000)
    return job


@pytest.mark.parametrize("operator", ["aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"])
def test_a_transform_of_a_prime_length_is_worth_padding(operator: str) -> None:
    """By hand 2.75 for a job whose transforms of 4,211 places were most of a step."""
    finding = found_in(transforms(4211, operator=operator).built)["compute.misaligned-shape"]
    is_worth(finding, 10 / (4 + 6 * 0.15))
    assert [one.value for one in finding.evidence[1:]] == [4211, 4211, 4320]
    assert finding.remedy is not None
    assert "n = 4320  # not 4211" in (finding.remedy.patch or "")


@pytest.mark.parametrize("length", [4096, 4320, 1001, 97, 0])
def test_a_transform_of_small_factors_or_few_places_is_not(length: int) -> None:
    assert "compute.misaligned-shape" not in found_in(transforms(length).built)


def test_short_transforms_are_not_worth_it() -> None:
    assert "compute.misaligned-shape" not in found_in(transforms(4211, lasts=150_000).built)
