"""device.throttled: steps in which all kernels are slower than their own best fire it;
other shapes and one slow kernel do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from tests.diagnosis.cases import case_of, found_in, run
from tests.diagnosis.jobs import Job, is_worth

from whystall.analysis.run_results import DeviceClocks
from whystall.diagnosis.rules.device import throttled

KERNELS: Final = (
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>",
)
HIP: Final = (
    "Cijk_Alik_Bljk_BBS_BH_MT256x128x64_MI16x16x1_SN_LDSB1",
    "void at::native::elementwise_kernel_manual_unroll<128, 8, at::native::AddFunctor<float>>",
    "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEv",
    "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>",
)
KERNEL_NS: Final = 500_000
SLOW_STEPS: Final = (5, 6, 7, 8)
RAGGED: Final = (1.05, 0.98, 0.98, 1.03, 1.11, 1.11, 1.0, 1.03, 0.98, 1.04, 0.82, 0.85)
SCATTERED: Final = (0.9, 0.92, 0.91, 0.94, 0.99, 1.04, 1.1, 1.15, 0.93, 0.9, 0.91, 0.94)


def training(
    factor: Callable[[int, int], float], kernels: tuple[str, ...] = KERNELS, *, api: str = "cuda", larger: bool = False
) -> Job:
    """Twelve steps of four kernels of 0.5 ms, some of which take longer; ``larger``: because they have more blocks."""
    job = Job(api=api)
    for number in job.steps(12):
        for place, kernel in enumerate(kernels):
            times = factor(number, place)
            grid = [round(1024 * times) if larger else 1024, 1, 1]
            job.launch(kernel, round(KERNEL_NS * times), grid=grid)
        job.wait()
    return job


def slow(times: float) -> Callable[[int, int], float]:
    return lambda number, _place: times if number in SLOW_STEPS else 1.0


@pytest.mark.parametrize(("kernels", "api"), [(KERNELS, "cuda"), (HIP, "hip")])
def test_a_third_of_the_steps_at_three_quarters_of_the_clock_is_worth_the_difference(
    kernels: tuple[str, ...], api: str
) -> None:
    finding = found_in(training(slow(4 / 3), kernels, api=api).built)["device.throttled"]
    assert finding.gain is not None
    # Of the ten steps that are replayed four are slower by a third.
    assert finding.gain.floor <= 1 + 4 / 30 <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(1 + 4 / 30, rel=0.03)
    # Four steps of four kernels take a third more: over all twelve steps, or those without the first and last ones.
    assert 4 * 4 * KERNEL_NS / 3 / 12 <= finding.attributed_ns_per_step <= 4 * 4 * KERNEL_NS / 3 / 9 * 1.01
    assert finding.scope.steps == [f"ProfilerStep#{number}" for number in SLOW_STEPS]


def test_steps_that_differ_by_the_clock_are_no_noise_that_hides_it() -> None:
    """Six of twelve steps are slower by 1.36: by the steps' own scatter nothing below 20 % could be told."""
    half = training(lambda number, _: 1.36 if 3 <= number < 9 else 1.0)
    finding = found_in(half.built)["device.throttled"]
    assert finding.gain is not None
    assert finding.gain.floor <= 1 + 0.36 * 6 / 10 <= finding.gain.ceiling


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(training(slow(1.0)), id="even"),
        pytest.param(training(slow(1.04)), id="less than five per cent"),
        pytest.param(training(slow(4 / 3), larger=True), id="more blocks, as of longer sequences"),
        pytest.param(training(lambda number, _: 4 / 3 if number % 3 == 1 else 1.0), id="now and then"),
        pytest.param(training(lambda number, place: 1.0 + (number * 7 + place * 3) % 11 / 50), id="scatter of a fifth"),
        pytest.param(training(lambda number, place: 3.0 if place == 3 and number in SLOW_STEPS else 1.0), id="one"),
    ],
)
def test_even_steps_larger_shapes_and_one_slow_kernel_are_none(job: Job) -> None:
    assert "device.throttled" not in found_in(job.built)


def test_a_host_that_is_late_in_some_steps_slows_no_kernel() -> None:
    job = Job()
    for number in job.steps(12):
        job.python(1_000_000 if number in SLOW_STEPS else 10_000)
        for kernel in KERNELS:
            job.launch(kernel, KERNEL_NS, grid=[1024, 1, 1])
        job.wait()
    assert "device.throttled" not in found_in(job.built)


def test_collectives_that_wait_are_no_slow_kernels() -> None:
    kernels = ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",) * 3
    assert "device.throttled" not in found_in(training(slow(4 / 3), kernels).built)


def clocks(median: int, low: int, held_back: float = 0.0, device: int = 0) -> DeviceClocks:
    return DeviceClocks(device=device, samples=40, median_mhz=median, low_mhz=low, held_back=held_back)


@pytest.mark.parametrize("sampled", [clocks(1980, 1500), clocks(1980, 1980, held_back=0.2)])
def test_a_clock_that_was_seen_to_drop_makes_it_sure(sampled: DeviceClocks) -> None:
    case = case_of(training(slow(4 / 3)).built, runs=[run(clocks=[sampled])])
    [found] = throttled.in_trace(case)
    assert (found.confidence, found.could_be, found.missing, found.nameless) == (0.9, (), (), False)


def test_of_a_clock_that_held_nothing_is_named() -> None:
    case = case_of(training(slow(4 / 3)).built, runs=[run(clocks=[clocks(1980, 1965)])])
    [found] = throttled.in_trace(case)
    assert found.nameless
    assert "clock held" in (found.if_hidden or "")


def test_another_devices_clock_says_nothing() -> None:
    case = case_of(training(slow(4 / 3)).built, runs=[run(clocks=[clocks(1980, 1500, device=1)])])
    [found] = throttled.in_trace(case)
    assert (found.confidence, found.missing) == (0.88, ("clocks and throttle reasons (NVML)",))


def test_kernels_of_one_name_and_grid_are_compared_by_their_place_in_the_step() -> None:
    """In each step the same kernel takes 0.1, 0.5 and 2 ms: slower by a third, one is faster than the next."""
    job = Job()
    for number in job.steps(12):
        for lasts in (100_000, 500_000, 2_000_000) * 4:
            job.launch(KERNELS[0], round(lasts * (4 / 3 if number in SLOW_STEPS else 1.0)), grid=[1024, 1, 1])
        job.wait()
    finding = found_in(job.built)["device.throttled"]
    assert finding.gain is not None
    assert finding.gain.expected == pytest.approx(1 + 4 / 30, rel=0.03)


@pytest.mark.parametrize("scattered", [SCATTERED, RAGGED])
def test_steps_that_scatter_are_none_even_where_slow_ones_come_together(scattered: tuple[float, ...]) -> None:
    """Lengths with all values between the usual and the longest, or some far away from others that scatter as much."""
    case = case_of(training(lambda number, _: scattered[number]).built)
    assert list(throttled.in_trace(case)) == []


def test_two_steps_far_from_all_others_are_no_chance() -> None:
    """Of twelve steps two that follow each other lie side by side by chance in one order of six, yet not by so much."""
    finding = found_in(training(lambda number, _: 2.5 if number in {5, 6} else 1.0).built)["device.throttled"]
    assert finding.scope.steps == ["ProfilerStep#5", "ProfilerStep#6"]
    is_worth(finding, 1 + 1.5 * 2 / 10)
    alone = training(lambda number, _: 2.5 if number == 5 else 1.0)
    assert "device.throttled" not in found_in(alone.built)
