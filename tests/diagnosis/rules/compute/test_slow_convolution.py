"""compute.slow-convolution: on a CPU very long kernels fire it, by their sizes. On a device no rule looks for it:
convolutions far from what the device can do are told to be, without a name.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import A100, Job, is_worth, shaped

import whystall

FLOPS = 2 * 64 * 56 * 56 * 256 * 256 * 9


@pytest.mark.parametrize(("share", "far"), [(0.1, True), (0.7, False)])
def test_slow_convolutions_are_no_health(share: float, *, far: bool) -> None:
    job = Job(A100)
    scalars = ["", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]
    arguments: dict[str, Any] = {
        "Input Dims": [[64, 256, 56, 56], [256, 256, 3, 3], *[[]] * 7],
        "Input type": ["c10::Half", "c10::Half", *scalars],
        "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    }
    for _ in job.steps(8):
        for _ in range(4):
            job.operator(
                "aten::convolution",
                "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32",
                round(FLOPS / (share * 312e3)),
                **arguments,
            )
        job.wait()
    summary = whystall.analyze(job.built.load()).verdict.summary
    assert ("convolution kernels take" in summary) is far
    assert summary.startswith("Healthy") is not far


LASTS_NS = 10_000_000
REST_NS = 5_000_000


def convolved(signal: list[int], kernel: list[int], *, stride: str = "[1]", transposed: str = "False") -> Job:
    """Eight steps on a CPU: a convolution of 10 ms, and a product of 5 ms."""
    job = Job()
    arguments: dict[str, Any] = {
        "Input Dims": [signal, kernel, *[[]] * 7],
        "Concrete Inputs": ["", "", "", stride, "[0]", "[1]", transposed, "[0]", "1"],
    }
    for _ in job.steps(8):
        with job.inside("aten::convolution", **arguments):
            job.python(LASTS_NS)
        with job.inside("aten::mm", **{"Input Dims": [[512, 512], [512, 512]]}):  # type: ignore[arg-type]
            job.python(REST_NS)
    return job


def test_long_kernels_are_worth_what_transforms_leave() -> None:
    """One channel of 16,000 with 4,000 taps: 96 MFLOP directly, and three transforms of 20,000 points, 1 MFLOP each."""
    job = convolved([1, 1, 16_000], [1, 1, 4_000])
    finding = found_in(job.built)["compute.slow-convolution"]
    left = (3 * 2.5 * 19_999 * 14.29 + 4 * 19_999) / (2 * 4_000 * 12_001)
    assert finding.gain is not None
    whole = LASTS_NS + REST_NS
    # A transform is slower by the FLOP: 2 to 20 times.
    assert finding.gain.floor <= 1.001 * whole / (REST_NS + LASTS_NS * left * 20)
    assert finding.gain.ceiling >= whole / (REST_NS + LASTS_NS * left * 2)
    assert finding.gain.expected == pytest.approx(whole / (REST_NS + LASTS_NS * left * 6), rel=0.03)
    assert finding.remedy is not None
    assert "rfft" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(convolved([16, 64, 56, 56], [64, 64, 3, 3], stride="[1, 1]"), id="images"),
        pytest.param(convolved([8, 256, 16_000], [256, 256, 31]), id="not so long"),
        pytest.param(convolved([1, 1, 16_000], [1, 1, 4_000], stride="[320]"), id="strided"),
        pytest.param(convolved([1, 1, 16_000], [1, 1, 4_000], transposed="True"), id="transposed"),
        pytest.param(convolved([1, 1, -5], [1, 1, 1 << 62]), id="no sizes"),
        pytest.param(convolved([], []), id="no shapes"),
    ],
)
def test_other_convolutions_are_none(job: Job) -> None:
    assert "compute.slow-convolution" not in told_of(job.built)


@pytest.mark.parametrize("parts", [1026, 513])
def test_spectra_by_convolution_are_worth_what_transforms_of_the_frames_leave(parts: int) -> None:
    """Frames of 1,024: a real transform of one takes 2.5 * 1024 * 10 FLOPs, a sum for each part 2 * 1,024."""
    job = convolved([8, 1, 16_000], [parts, 1, 1024], stride="[256]")
    finding = found_in(job.built)["compute.slow-convolution"]
    left = 2.5 * 1024 * 10 / (2 * 1024 * parts)
    assert finding.gain is not None
    assert finding.gain.expected == pytest.approx((LASTS_NS + REST_NS) / (REST_NS + LASTS_NS * left * 6), rel=0.03)
    assert finding.remedy is not None
    assert "torch.stft" in (finding.remedy.patch or "")


@pytest.mark.parametrize(("parts", "channels"), [(1024, 1), (80, 1), (1026, 2)])
def test_other_filters_of_frames_are_no_spectra(parts: int, channels: int) -> None:
    job = convolved([8, channels, 16_000], [parts, channels, 1024], stride="[256]")
    assert "compute.slow-convolution" not in told_of(job.built)


def computed_by(inner: str, lasts: int = LASTS_NS) -> Job:
    """Eight steps on a CPU: a convolution of 10 ms in an operator of its own, and a product of 5 ms."""
    job = Job()
    for _ in job.steps(8):
        with job.inside("aten::convolution"), job.inside(inner):
            job.python(lasts)
        with job.inside("aten::mm"):
            job.python(REST_NS)
    return job


@pytest.mark.parametrize(
    "inner", ["aten::_slow_conv2d_forward", "aten::slow_conv_dilated2d", "aten::slow_conv3d_forward"]
)
def test_convolutions_that_no_library_took_are_told(inner: str) -> None:
    finding = found_in(computed_by(inner).built)["compute.slow-convolution"]
    assert finding.gain is not None
    # oneDNN takes 0.1 to 0.8 of the time: at most 15 of 6 ms, at least 15 of 13
    assert 1 < finding.gain.floor < 15 / 13 < finding.gain.expected < 15 / 6 < finding.gain.ceiling
    assert finding.remedy is not None
    assert "mkldnn" in (finding.remedy.patch or "")
    assert inner.removeprefix("aten::") in finding.title


@pytest.mark.parametrize(
    "job", [computed_by("aten::mkldnn_convolution"), computed_by("aten::_slow_conv2d_forward", 200_000)]
)
def test_what_a_library_takes_and_what_is_short_is_not(job: Job) -> None:
    assert "compute.slow-convolution" not in found_in(job.built)


UNFOLD_NS = 6_000_000


def on_a_device(name: str) -> Job:
    """Eight steps of a convolution of 10 ms, of which 6 unfold, and of other work."""
    job = Job(A100)
    for _ in job.steps(8):
        with job.inside("aten::convolution", **shaped([1, 64, 32, 32, 32], [64, 64, 3, 3, 3])), job.inside(name):
            job.launch("void at::native::vol2col_kernel<c10::BFloat16>", UNFOLD_NS)
            job.launch("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", 4_000_000)
        job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", 5_000_000)
        job.wait()
    return job


def test_what_unfolds_pictures_on_a_device_is_worth_itself() -> None:
    job = on_a_device("aten::slow_conv_dilated3d")
    is_worth(found_in(job.built)["compute.slow-convolution"], job.step_ns / (job.step_ns - 0.75 * UNFOLD_NS))


def test_a_librarys_convolution_on_a_device_is_no_fallback() -> None:
    assert "compute.slow-convolution" not in found_in(on_a_device("aten::cudnn_convolution").built)


HALVES: dict[str, Any] = {
    "Input Dims": [[16, 128, 56, 56], [128, 64, 3, 3], *[[]] * 7],
    "Input type": ["c10::Half", "c10::Half", *["ScalarList"] * 3, *["Scalar"] * 4],
    "Concrete Inputs": ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "2", "False", "False", "True"],
}
HALVES_FLOPS = 2 * 16 * 56 * 56 * 128 * 64 * 9
COMPUTED_NS = 3_000_000
CONVERTED_NS = 4_000_000


def converted(
    kernel: str, *, conversion: str = "void cudnn::ops::genericTranspose_kernel<float, __half, float>"
) -> Job:
    """Eight steps of a grouped 16-bit convolution between two conversions, and of a product of 5 ms."""
    job = Job(A100)
    for _ in job.steps(8):
        with job.inside("aten::cudnn_convolution", **HALVES):
            job.launch(conversion, CONVERTED_NS)
            job.launch(kernel, COMPUTED_NS)
            job.launch(conversion, CONVERTED_NS)
        job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", 5_000_000)
        job.wait()
    return job


def test_a_library_that_converts_and_leaves_tensor_cores_idle_is_one_loss() -> None:
    """By the roofline of the A100: 312 TFLOP/s at 70 %."""
    job = converted("void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, false, true>(int)")
    found = found_in(job.built)
    finding = found["compute.slow-convolution"]
    left_ns = HALVES_FLOPS / (312e12 * 0.7) * 1e9
    is_worth(finding, job.step_ns / (job.step_ns - 2 * CONVERTED_NS - COMPUTED_NS + left_ns))
    assert "[16, 128, 56, 56] by [128, 64, 3, 3]" in str(finding.evidence)
    assert not {"compute.layout-conversion", "compute.low-tensor-core"} & set(found)


def test_conversions_around_tensor_cores_are_a_layout() -> None:
    job = converted("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4")
    found = found_in(job.built)
    assert "compute.slow-convolution" not in found
    remedy = found["compute.layout-conversion"].remedy
    assert remedy is not None
    assert "channels_last" in remedy.text


def trying(
    *,
    often: bool = True,
    timed: str = "EventElapsedTime",
    in_steps: tuple[int, ...] = (0,),
    records: bool = True,
    again: bool = False,
    backward: bool = False,
) -> Job:
    """Eight steps of a product of 5 ms and of a convolution of 1 ms, before which a library tries two of 4 ms.

    ``again``: all steps have the same sizes; ``backward``: the call searches twice, for inputs and for weights, and an
    event that is recorded before each kernel that stays shifts their pairs.
    """
    job = Job(A100)
    for step in job.steps(8):
        tries = often or step in in_steps
        sizes = shaped([16, 64, 56 + (0 if again else step), 56], [64, 64, 3, 3])
        with job.inside("aten::convolution_backward" if backward else "aten::cudnn_convolution", **sizes):
            for search in range(1 + backward):
                for _ in range(2 if tries else 0):
                    if records:
                        job.call("EventRecord", 2_000)
                    job.launch(f"void implicit_convolve_sgemm<float, float, {128 + search}>", 4_000_000)
                    if records:
                        job.call("EventRecord", 2_000)
                    job.wait()
                    if timed:
                        job.call(timed, 2_000)
                if backward:
                    job.call("EventRecord", 2_000)
                job.launch(f"void implicit_convolve_sgemm<float, float, {1_024 + search}>", 1_000_000)
        job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", 5_000_000)
        job.wait()
    return job


@pytest.mark.parametrize("timed", ["EventElapsedTime", "EventSynchronize"])
def test_algorithms_that_are_measured_again_after_steps_without_are_told(timed: str) -> None:
    """Sizes change: some steps see one that the library has not seen, and a recording may begin anywhere."""
    finding = found_in(trying(often=False, timed=timed, in_steps=(3, 6)).built)["compute.slow-convolution"]
    assert finding.remedy is not None
    assert finding.remedy.patch == "torch.backends.cudnn.benchmark = False"


def test_algorithms_that_are_measured_in_each_step_are_worth_the_trials() -> None:
    job = trying()
    finding = found_in(job.built)["compute.slow-convolution"]
    assert finding.gain is not None
    assert finding.gain.expected == pytest.approx(job.step_ns / (job.step_ns - 2 * 4_000_000), rel=0.05)
    assert finding.remedy is not None
    assert finding.remedy.patch == "torch.backends.cudnn.benchmark = False"


def test_a_backward_call_searches_twice() -> None:
    job = trying(backward=True)
    finding = found_in(job.built)["compute.slow-convolution"]
    assert finding.gain is not None
    assert finding.gain.expected == pytest.approx(job.step_ns / (job.step_ns - 4 * 4_000_000), rel=0.05)


@pytest.mark.parametrize(
    "job",
    [
        trying(often=False),
        trying(often=False, in_steps=(0, 1, 2)),
        trying(timed=""),
        trying(timed="EventSynchronize", records=False),
        trying(often=False, in_steps=(1, 3), again=True),
    ],
    ids=["in one step", "in the first steps", "nothing is timed", "an allocator waits", "sizes that come back"],
)
def test_a_single_measurement_and_kernels_that_nobody_times_are_none(job: Job) -> None:
    assert "compute.slow-convolution" not in found_in(job.built)


def measuring_with_memory(*, elsewhere: bool) -> Job:
    """Trials that allocate and free workspaces; ``elsewhere``: so does most of the step beside them."""
    job = Job(A100)
    for _ in job.steps(8):
        with job.inside("aten::cudnn_convolution"):
            for _ in range(2):
                job.call("Malloc", 1_000_000)
                job.launch("void implicit_convolve_sgemm<float, float, 128>", 4_000_000)
                job.wait()
                job.call("Free", 1_000_000)
                job.call("EventElapsedTime", 2_000)
            job.launch("void implicit_convolve_sgemm<float, float, 1024>", 1_000_000)
        for _ in range(4 if elsewhere else 0):
            job.call("Malloc", 1_000_000)
            job.call("Free", 1_000_000)
        job.operator("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", 5_000_000)
        job.wait()
    return job


@pytest.mark.parametrize("elsewhere", [False, True])
def test_memory_for_trials_follows_from_them(*, elsewhere: bool) -> None:
    found = told_of(measuring_with_memory(elsewhere=elsewhere).built)
    retries = found["memory.allocator-retry"]
    assert (retries.because == "compute.slow-convolution") is not elsewhere
    assert (retries.gain is None) is not elsewhere


def test_products_that_are_tried_and_thrown_away_are_no_loss_of_precision() -> None:
    found = found_in(trying_products().built)
    assert "compute.slow-convolution" in found
    assert not {"compute.low-tensor-core", "compute.fp32-matmul"} & set(found)


def trying_products() -> Job:
    """Convolutions in single precision, before each of which a library tries two matrix products of an A100's units."""
    job = Job(A100)
    scalars = ["", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]
    arguments: dict[str, Any] = {
        "Input Dims": [[16, 64, 56, 56], [64, 64, 3, 3], *[[]] * 7],
        "Input type": ["float", "float", *scalars],
        "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    }
    for _ in job.steps(8):
        with job.inside("aten::convolution", **arguments):
            for _ in range(2):
                job.launch("ampere_sgemm_128x64_nn", 4_000_000)
                job.wait()
                job.call("EventElapsedTime", 2_000)
            job.launch("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", 200_000)
        job.wait()
    return job
