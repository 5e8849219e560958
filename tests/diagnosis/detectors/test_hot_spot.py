"""What takes most of the time where no cause applies, and how far it is from its limit."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import case_of
from tests.diagnosis.jobs import A100, H100, Job, shaped

from whystall.diagnosis.detectors.hot_spot import HotSpot, biggest_gap, hot_spots, short_name
from whystall.hardware.host_link import host_link_bytes_per_s
from whystall.testing import trace

SIZE = [4096, 4096]
BYTES = 3 * 4096 * 4096 * 4
BANDWIDTH = 2039e9
UNKNOWN_PART = {"id": 0, "name": "Whatever 9000", "computeMajor": 3, "computeMinor": 0, "numSms": 4}


def adding(times: float, *, device: dict[str, object] | None = A100, shapes: bool = True, kernel: str = "add") -> Job:
    """Six steps of an addition at ``1 / times`` of the bandwidth, and a product a tenth as long."""
    job = Job(device)
    lasts = round(times * BYTES / BANDWIDTH * 1e9)
    for _ in job.steps(6):
        job.operator("aten::add", kernel, lasts, **(shaped(SIZE, SIZE, []) if shapes else {}))
        job.operator("aten::mm", "sm80_gemm_f32", lasts // 10, **(shaped(SIZE, SIZE) if shapes else {}))
        job.wait()
    return job


def first(job: Job) -> HotSpot:
    return hot_spots(case_of(job.built))[0]


@pytest.mark.parametrize("times", [1.25, 4.0, 20.0])
def test_an_operator_is_held_against_the_bandwidth_that_it_needs(times: float) -> None:
    spot = first(adding(times))
    assert spot.what == "aten::add"
    assert spot.share == pytest.approx(10 / 11, rel=0.02)
    assert spot.times == pytest.approx(times, rel=0.02)  # as the roofline says
    assert "the memory's bandwidth" in spot.limit
    assert "called at" not in spot.place


@pytest.mark.parametrize("times", [1.25, 4.0, 20.0])
def test_the_speed_up_at_the_limit_is_replayed(times: float) -> None:
    """Eleven parts a step, ten of them the addition's; the waits of some microseconds are the rest."""
    job, spot = adding(times), first(adding(times))
    lasts = times * BYTES / BANDWIDTH * 1e9
    expected = job.step_ns / (job.step_ns - lasts * (1 - 1 / times))
    assert spot.worth == pytest.approx(expected, rel=0.03)
    assert f"at that limit the step would be {spot.worth:.2f} times as fast" in str(spot)


def test_an_operator_at_its_limit_is_worth_nothing() -> None:
    assert "at that limit" not in str(first(adding(1.0)))


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (adding(4, shapes=False), "without shapes"),
        (adding(4, device=None), "since the device's peaks are"),
        (adding(4, device=UNKNOWN_PART), "since the device's peaks are"),
        (adding(900), "the recorded sizes explain almost none of it"),
    ],
)
def test_where_the_limit_is_not_known_the_reason_is_said(job: Job, why: str) -> None:
    spot = first(job)
    assert spot.times is None
    assert why in str(spot)


@pytest.mark.parametrize(("device", "peak"), [(A100, 32e9), (H100, 64e9)])
def test_a_copy_between_host_and_device_is_held_against_their_link(device: dict[str, object], peak: float) -> None:
    """Without shapes too: the event has its bytes."""
    job, bytes_per_s = Job(device), 0.8 * peak
    for _ in job.steps(6):
        lasts = round(20_000_000 / bytes_per_s * 1e9)
        job.launch("Memcpy HtoD (Pinned -> Device)", lasts, call="MemcpyAsync", category="gpu_memcpy", bytes=20_000_000)
        job.operator("aten::mm", "sm80_gemm_f32", lasts // 20)
        job.wait()
    spot = first(job)
    assert spot.times == pytest.approx(1.25, rel=0.01)
    assert spot.limit == "the peak of the link to the host"


@pytest.mark.parametrize(
    ("device", "bytes_per_s"),
    [
        ({"id": 0, "name": "Whatever 9000"}, 27e9),  # of which nothing is known
        (A100, 50e9),  # faster than the link of the table: it has another one
    ],
)
def test_a_link_that_is_not_known_is_no_limit(device: dict[str, object], bytes_per_s: float) -> None:
    job = Job(device)
    for _ in job.steps(6):
        lasts = round(20_000_000 / bytes_per_s * 1e9)
        job.launch("Memcpy HtoD (Pinned -> Device)", lasts, call="MemcpyAsync", category="gpu_memcpy", bytes=20_000_000)
        job.wait()
    assert first(job).times is None


@pytest.mark.parametrize(
    ("name", "capability", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0), 64e9),
        ("NVIDIA GH200 480GB", (9, 0), 450e9),
        ("NVIDIA B300", (10, 3), 128e9),
        ("NVIDIA GeForce RTX 5090", (12, 0), 64e9),
        ("Tesla T4", (7, 5), 16e9),
        ("AMD Instinct MI300X", (9, 4), 64e9),
        ("AMD Instinct MI250X", (9, 0), None),
        ("", None, None),
    ],
)
def test_links_follow_from_the_part(name: str, capability: tuple[int, int] | None, peak: float | None) -> None:
    assert host_link_bytes_per_s(name, capability) == peak


def test_kernels_that_are_printed_alike_are_one() -> None:
    job = Job(A100)
    for _ in job.steps(6):
        job.launch("void gemv::kernel<float, 128>(float*)", 600_000)
        job.launch("void gemv::kernel<float, 256>(float*)", 300_000)
        job.launch("void another_kernel(float*)", 100_000)
        job.wait()
    spot = first(job)
    assert spot.what == "gemv::kernel"
    assert spot.share == pytest.approx(0.9, abs=0.01)


def test_a_collective_has_no_limit_of_its_own() -> None:
    job = Job(A100)
    for _ in job.steps(6):
        job.operator("c10d::allreduce_", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 900_000)
        job.operator("aten::mm", "sm80_gemm_f32", 100_000)
        job.wait()
    spot = first(job)
    assert spot.times is None
    assert "whose time depends on the other ranks" in str(spot)


def test_a_recording_of_another_profiler_is_not_asked_for_an_option_of_torchs() -> None:
    built = trace(deviceProperties=[A100])
    for number in range(6):
        built.kernel("some_kernel", at=number * 1_000_000, lasts=900_000)
    assert str(hot_spots(case_of(built))[0]).endswith("its distance from the limit is unknown without shapes.")


def test_a_job_on_a_cpu_names_its_operator() -> None:
    job = Job()
    for _ in job.steps(6):
        with job.inside("aten::randn"):
            job.python(10_000_000)
        with job.inside("aten::mm"):
            job.python(1_000_000)
    spot = first(job)
    assert (spot.what, spot.on_device) == ("aten::randn", False)
    assert "aten::randn takes the largest part of the time in operators (91%)" in str(spot)


def test_the_longest_gap_is_said_where_it_is_long() -> None:
    job = Job()
    for number in range(20):
        job.operator("aten::mm", "gemm", 100_000)
        if number == 9:
            job.wait()
            job.python(5_000_000)
    assert biggest_gap(case_of(job.built)).startswith("The longest gap, 5.0")
    assert biggest_gap(case_of(adding(4).built)) == ""


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float, 7>(int, float)",
            "internal::gemvx::kernel",
        ),
        (
            "void at::native::(anonymous namespace)::softmax_warp_forward<float, 10, false>(float*)",
            "at::native::softmax_warp_forward",
        ),
        ("ampere_bf16_s16816gemm_128x128", "ampere_bf16_s16816gemm_128x128"),
        ("_ZN5cudnn25bn_fw_tr_1C11_kernel_NCHWIffLi512EEEvPKT_", "cudnn::bn_fw_tr_1C11_kernel_NCHW"),
        ("<<<", "<<<"),
    ],
)
def test_names_are_short_enough_for_a_sentence(kernel: str, name: str) -> None:
    assert short_name(kernel) == name
