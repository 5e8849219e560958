"""compute.double-precision: tensors of type double fire it; numbers by themselves, casts and floats do not."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import H100, Job, is_worth, shaped

PRODUCT_NS = 5_000_000
MATRIX = [512, 512]


def products(types: list[str], sizes: list[list[int]]) -> Job:
    """Eight steps of which half is a product of tensors of given types."""
    job = Job()
    for _ in job.steps(8):
        with job.inside("aten::mm", **{"Input Dims": [MATRIX, MATRIX], "Input type": ["float", "float"]}):  # type: ignore[arg-type]
            job.python(PRODUCT_NS)
        with job.inside("aten::mm", **{"Input Dims": sizes, "Input type": types}):  # type: ignore[arg-type]
            job.python(PRODUCT_NS)
    return job


def test_products_in_double_are_worth_half_of_their_time() -> None:
    finding = found_in(products(["double", "double"], [MATRIX, MATRIX]).built)["compute.double-precision"]
    is_worth(finding, 4 / 3)


@pytest.mark.parametrize(("back", "patch"), [(True, "x = x.float()"), (False, "x = torch.from_numpy")])
def test_a_part_that_upcasts_is_no_model_in_double(back: bool, patch: str) -> None:
    """A function converts its input and its result; a model in float64 converts its input alone."""
    job = Job()
    for _ in job.steps(8):
        job.operator("aten::copy_", **{**shaped(MATRIX, MATRIX), "Input type": ["double", "c10::BFloat16"]})
        with job.inside("aten::mul", **shaped(MATRIX, MATRIX, dtype="double")):
            job.python(PRODUCT_NS)
        if back:
            job.operator("aten::copy_", **{**shaped(MATRIX, MATRIX), "Input type": ["float", "double"]})
        with job.inside("aten::mm", **shaped(MATRIX, MATRIX, dtype="float")):
            job.python(PRODUCT_NS)
    finding = found_in(job.built)["compute.double-precision"]
    assert finding.remedy is not None
    assert (finding.remedy.patch or "").startswith(patch)


@pytest.mark.parametrize(
    ("types", "sizes"),
    [
        (["float", "float"], [MATRIX, MATRIX]),
        (["float", "double"], [MATRIX, []]),  # a number
        (["double", "float"], [MATRIX, MATRIX]),  # a cast
    ],
)
def test_others_are_not(types: list[str], sizes: list[list[int]]) -> None:
    assert "compute.double-precision" not in found_in(products(types, sizes).built)


def test_convolutions_on_a_cpu_gain_more_than_half() -> None:
    """They take 0.21 to 0.64 of the time in single precision where they were measured (thresholds of the cause)."""
    job = Job()
    for _ in job.steps(8):
        for kind in ("float", "double"):
            sizes = [[8, 64, 32, 32], [64, 64, 3, 3]]
            with job.inside("aten::convolution", **{"Input Dims": sizes, "Input type": [kind, kind]}):  # type: ignore[arg-type]
                job.python(PRODUCT_NS)
    finding = found_in(job.built)["compute.double-precision"]
    assert finding.gain is not None
    assert finding.gain.floor <= 2 / 1.64
    assert finding.gain.expected >= 2 / 1.48
    assert finding.gain.ceiling >= 2 / 1.21


@pytest.mark.parametrize(("lasts", "fires"), [(PRODUCT_NS, False), (PRODUCT_NS // 20, True)])
def test_where_matrices_are_factored_the_precision_is_wanted(lasts: int, fires: bool) -> None:
    job = Job()
    doubles = {"Input Dims": [MATRIX, MATRIX], "Input type": ["double", "double"]}
    for _ in job.steps(8):
        with job.inside("aten::mm", **doubles):  # type: ignore[arg-type]
            job.python(PRODUCT_NS)
        with job.inside("aten::linalg_cholesky_ex", **doubles):  # type: ignore[arg-type]
            job.python(lasts)
        with job.inside("aten::mm", **shaped(MATRIX, MATRIX)):
            job.python(PRODUCT_NS)
    assert ("compute.double-precision" in found_in(job.built)) == fires


@pytest.mark.parametrize(
    ("beside", "certain"),
    [
        (None, False),  # a method that computes everything in double precision, and learns nothing
        ("aten::gelu", False),  # a network that was converted as a whole, such as a potential of atoms
        ("optimizer", True),  # it learns
        ("float", True),  # an array that was not converted, beside tensors in single precision
    ],
)
@pytest.mark.parametrize("device", [None, H100])
def test_a_method_that_learns_nothing_may_want_its_precision(
    beside: str | None, certain: bool, device: dict[str, Any] | None
) -> None:
    job = Job(device)
    kernel = "sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x128x16_cublas"
    for _ in job.steps(8):
        for _ in range(3):
            with (
                job.inside("aten::einsum"),
                job.inside("aten::bmm", **shaped([8, *MATRIX], [8, *MATRIX], dtype="double")),
            ):
                job.launch(kernel, PRODUCT_NS) if device else job.python(PRODUCT_NS)
        if beside is not None:
            kind, name = ("float", "aten::mul") if beside == "float" else ("double", beside)
            name = "aten::mul" if beside == "optimizer" else name
            with (
                job.marked("Optimizer.step#Adam.step" if beside == "optimizer" else "other"),
                job.inside(name, **shaped([4096, 4096], [4096, 4096], dtype=kind)),
            ):
                job.launch("mul_kernel", PRODUCT_NS * 2) if device else job.python(PRODUCT_NS * 2)
        job.wait()
    told = told_of(job.built)["compute.double-precision"]
    assert ("compute.double-precision" in found_in(job.built)) == certain
    assert told.gain is None or (told.gain.floor == 1.0) != certain


T4: Final = {"id": 0, "name": "Tesla T4", "computeMajor": 7, "computeMinor": 5}
FLOPS: Final = 2 * 8192 * 4096 * 4096
SINGLE_MS: Final = FLOPS / 67e12 * 1e3 / 0.7
"""What good kernels without tensor cores take an H100: 5.9 ms."""
TF32_MS: Final = FLOPS / 494.5e12 * 1e3
"""What TF32 takes at the peak: 0.56 ms."""


def on_a_device(kernel: str, lasts_ms: float, *, device: dict[str, Any] = H100, beside: str = "gelu_kernel") -> Job:
    """Eight steps of a product in double precision, and of another kernel that takes as long."""
    job, lasts = Job(device), int(lasts_ms * 1e6)
    sizes = ([8192, 4096], [4096, 4096])
    for _ in job.steps(8):
        job.operator("aten::mm", kernel, lasts, **shaped(*sizes, dtype="double"))
        job.operator("aten::mm" if "tf32" in beside else "aten::gelu", beside, lasts, **shaped(*sizes))
        job.wait()
    return job


@pytest.mark.parametrize(
    ("beside", "left_ms"),
    [("gelu_kernel", 0.5 * 5), ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32_cublas", TF32_MS / 0.7)],
)
def test_products_on_a_device_gain_by_its_peaks(beside: str, left_ms: float) -> None:
    """An H100 multiplies doubles on tensor cores as fast as floats without, and far faster in TF32, where it may."""
    found = found_in(
        on_a_device("sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x128x16_cublas", 5, beside=beside).built
    )
    finding = found["compute.double-precision"]
    gain = finding.gain
    assert gain is not None
    assert SINGLE_MS > 5
    assert gain.floor <= 10 / (5 + 0.75 * 5)
    assert finding.remedy is not None
    assert ("set_float32_matmul_precision" in (finding.remedy.patch or "")) == ("tf32" not in beside)
    assert gain.expected == pytest.approx(10 / (5 + left_ms), rel=0.01)
    assert 10 / (5 + TF32_MS) <= gain.ceiling < 10 / 5


def test_devices_with_few_units_for_doubles_gain_most() -> None:
    """A T4 reaches 0.25 TFLOP/s in double precision, and 8.1 in single."""
    double_ms, single_ms = FLOPS / 0.25e12 * 1e3, FLOPS / 8.1e12 * 1e3
    finding = found_in(on_a_device("volta_dgemm_128x64_nn", double_ms, device=T4).built)["compute.double-precision"]
    is_worth(finding, 2 * double_ms / (double_ms + single_ms / 0.7))


def resampling(*, double: bool, device: dict[str, Any] = T4) -> Job:
    """Steps that resample volumes, in double precision between two conversions or in single precision, and products."""
    volume = [1, 1, 128, 128, 128]
    numbers = 128**3
    moved_ns = round(numbers * 4 * 2 / 300e9 * 1e9)
    job = Job(device)

    def cast(target: str, source: str) -> None:
        with job.inside("aten::to"), job.inside("aten::_to_copy"):
            job.operator("aten::copy_", "copy_kernel", 2 * moved_ns, **types(target, source))

    def types(*kinds: str) -> dict[str, Any]:
        return {"Input Dims": [volume] * len(kinds), "Input type": list(kinds)}

    for _ in job.steps(8):
        if double:
            cast("double", "float")
        lasts = 20 * moved_ns if double else 2 * moved_ns
        job.operator("aten::mul", "elementwise_kernel", lasts, **types(*["double" if double else "float"] * 2))
        if double:
            cast("float", "double")
        job.operator("aten::mm", "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", 1_000_000)
        job.wait()
    return job


def test_kernels_that_few_units_for_doubles_limit_gain_with_the_conversions_around_them() -> None:
    finding = found_in(resampling(double=True).built)["compute.double-precision"]
    assert finding.gain is not None
    true = resampling(double=True).step_ns / resampling(double=False).step_ns
    assert finding.gain.floor <= true <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(true, rel=0.15)
    assert "compute.cast-churn" not in found_in(resampling(double=True).built)
