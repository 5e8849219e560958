"""communication.low-bandwidth: large collectives far below a network card fire it;
good ones and those of late ranks do not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import H100, MI300X, Job, is_worth, meet, message, together

from whystall.diagnosis.gains import MODEL_ERROR
from whystall.testing import TraceBuilder, trace

COMPUTE_NS: Final = 10_000_000
SIZE: Final = 256_000_000
NCCL: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
HIP_NCCL: Final = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"


def nanoseconds(bytes_per_s: float, *, factor: float = 1.0) -> int:
    """What a collective takes at a bus bandwidth; ``factor`` is bytes on the wire per byte (2 (n - 1) / n of n
    ranks).
    """
    return round(factor * SIZE / bytes_per_s * 1e9)


def training(
    transfer_ns: int,
    *,
    device: dict[str, Any] = H100,
    api: str = "cuda",
    kernel: str = NCCL,
    ranks: int = 2,
    late_ns: int = 0,
    beside: bool = True,
    collective: str = "allreduce",
) -> list[Job]:
    """Eight steps of a product of 10 ms and a collective of 256 MB; the last rank may come late.

    ``beside``: whether each rank uses a device of its own number, as ranks of one machine do.
    """
    jobs = [Job(device, api=api, number=rank if beside else 0) for rank in range(ranks)]
    for _ in together(jobs, 8):
        for job in jobs:
            job.launch("gemm", COMPUTE_NS + (late_ns if job is jobs[-1] else 0))
        meet(jobs, kernel, transfer_ns, **message(collective, SIZE, ranks=tuple(range(ranks))))
        for job in jobs:
            job.wait()
    return jobs


@pytest.mark.parametrize(
    ("device", "api", "kernel", "collective", "ranks", "factor", "link"),
    [
        (H100, "cuda", NCCL, "allreduce", 2, 1.0, 450e9),
        (H100, "cuda", NCCL, "allreduce", 4, 1.5, 450e9),
        (H100, "cuda", "ncclDevKernel_AllGather_RING_LL", "_allgather_base", 4, 0.75, 450e9),
        (MI300X, "hip", HIP_NCCL, "allreduce", 2, 1.0, 448e9),
    ],
)
def test_ten_gigabytes_a_second_are_worth_what_the_link_moves(
    device: dict[str, Any], api: str, kernel: str, collective: str, ranks: int, factor: float, link: float
) -> None:
    """Good collectives reach 70 % of the link; at the least they reach that of a network of 400 Gb/s."""
    slow, fast = nanoseconds(10e9, factor=factor), nanoseconds(0.7 * link, factor=factor)
    jobs = training(slow, device=device, api=api, kernel=kernel, ranks=ranks, collective=collective)
    finding = found_in(*(job.built for job in jobs))["communication.low-bandwidth"]
    whole = jobs[0].step_ns
    is_worth(finding, whole / (whole - slow + fast))
    assert finding.gain is not None
    assert finding.gain.floor <= 1.001 * whole / (whole - slow + nanoseconds(0.7 * 50e9, factor=factor))
    assert finding.evidence[0].value == pytest.approx(10e9, rel=0.02)


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(training(nanoseconds(35e9)), id="as fast as a network card gets"),
        pytest.param(training(nanoseconds(300e9)), id="as fast as the link gets"),
        pytest.param(training(nanoseconds(300e9), late_ns=20_000_000), id="one rank comes late"),
    ],
)
def test_good_bandwidths_and_late_ranks_are_none(jobs: list[Job]) -> None:
    assert "communication.low-bandwidth" not in found_in(*(job.built for job in jobs))


def test_without_the_other_ranks_it_is_told_that_one_of_them_may_be_late() -> None:
    told = told_of(training(nanoseconds(10e9))[0].built)["communication.low-bandwidth"]
    assert told.severity == "info"
    assert told.missing_signals == ["traces of the other ranks"]


def test_small_collectives_cost_their_latency_and_not_their_bytes() -> None:
    jobs = [Job(H100, number=number) for number in range(2)]
    for _ in together(jobs, 8):
        for job in jobs:
            job.launch("gemm", 100_000)
        for _ in range(4):
            meet(jobs, NCCL, 25_000, **message("allreduce", 64 << 10))
        for job in jobs:
            job.wait()
    assert "communication.low-bandwidth" not in told_of(*(job.built for job in jobs))


@pytest.mark.parametrize(("gigabytes_per_s", "fires"), [(22, False), (9, False), (5, True)])
def test_ranks_that_may_be_on_several_machines_are_held_to_a_network(gigabytes_per_s: int, *, fires: bool) -> None:
    """Both use a device 0: 22 GB/s are 88 % of a card of 200 Gb/s; 5 are slow over any, and gain no NVLink."""
    jobs = training(slow := nanoseconds(gigabytes_per_s * 1e9), beside=False)
    if not fires:
        assert "communication.low-bandwidth" not in told_of(*(job.built for job in jobs))
        return
    finding = found_in(*(job.built for job in jobs))["communication.low-bandwidth"]
    assert finding.gain is not None
    whole = jobs[0].step_ns
    assert finding.gain.floor <= 1.001 * whole / (whole - slow + nanoseconds(0.7 * 12.5e9))
    # a ceiling exceeds the replay by the model's error of what is left
    assert finding.gain.ceiling <= 1.001 * whole / (whole - slow + nanoseconds(50e9)) / (1 - MODEL_ERROR)


def test_small_messages_over_a_slow_link_are_slow_with_the_large_ones() -> None:
    """Twenty of 512 kB beside each large one: over a good link they take its latency, at the least what they take."""
    slow, fast, small_ns = nanoseconds(10e9), nanoseconds(0.7 * 450e9), 400_000
    jobs = [Job(H100, number=number) for number in range(2)]
    for _ in together(jobs, 8):
        for job in jobs:
            job.launch("gemm", COMPUTE_NS)
        meet(jobs, NCCL, slow, **message("allreduce", SIZE))
        for _ in range(20):
            meet(jobs, NCCL, small_ns, **message("allreduce", 512 << 10))
        for job in jobs:
            job.wait()
    finding = found_in(*(job.built for job in jobs))["communication.low-bandwidth"]
    whole = jobs[0].step_ns
    good_ns = 30_000 + round((512 << 10) / (0.7 * 450e9) * 1e9)
    is_worth(finding, whole / (whole - (slow - fast) - 20 * (small_ns - good_ns)))
    assert finding.gain is not None
    assert finding.gain.floor <= 1.001 * whole / (whole - slow + nanoseconds(0.7 * 50e9))


RTX_4090: Final = {"id": 0, "name": "NVIDIA GeForce RTX 4090", "computeMajor": 8, "computeMinor": 9}
L4: Final = {"id": 0, "name": "NVIDIA L4", "computeMajor": 8, "computeMinor": 9}


@pytest.mark.parametrize("device", [RTX_4090, L4, {}])
@pytest.mark.parametrize(("gigabytes_per_s", "fires"), [(10, False), (6, False), (2, True)])
def test_what_pcie_moves_is_slow_only_far_below_it(
    device: dict[str, Any], gigabytes_per_s: int, *, fires: bool
) -> None:
    """Without NVLink, or on a part that nobody knows, 10 GB/s is what there is; 2 GB/s is not."""
    jobs = training(nanoseconds(gigabytes_per_s * 1e9), device=device)
    found = found_in(*(job.built for job in jobs))
    assert ("communication.low-bandwidth" in found) is fires
    if fires:
        fast = nanoseconds(0.7 * 8e9)
        is_worth(found["communication.low-bandwidth"], jobs[0].step_ns / (jobs[0].step_ns - nanoseconds(2e9) + fast))


def between_hosts(bytes_per_s: float, *, size: int = SIZE // 64, held_up: int = 0) -> list[TraceBuilder]:
    """Two ranks of a CPU job: eight steps of 10 ms of compute and one all_reduce by gloo.

    ``held_up`` of the eight take ten times as long, since a process was kept from its core.
    """
    ranks = []
    for _ in range(2):
        built, at = trace(), 0
        for number in range(8):
            lasts = round(size / bytes_per_s * 1e9) * (10 if number < held_up else 1)
            built.step(number, at=at, lasts=COMPUTE_NS + lasts)
            built.operator("aten::mm", at=at, lasts=COMPUTE_NS)
            built.operator("gloo:all_reduce", at=at + COMPUTE_NS, lasts=lasts, **message("all_reduce", size))
            at += COMPUTE_NS + lasts
        ranks.append(built)
    return ranks


def test_ten_megabytes_a_second_between_hosts_are_slow() -> None:
    """4 MB at 10 MB/s take 400 ms; at 70 % of 10 Gb/s 4.6 ms, at 70 % of 1 Gb/s 45.7 ms."""
    finding = found_in(*between_hosts(10e6))["communication.low-bandwidth"]
    assert finding.gain is not None
    assert finding.gain.expected == pytest.approx(410 / 14.57, rel=0.02)
    assert finding.gain.floor <= 410 / 55.7 * 1.001
    assert finding.remedy is not None
    assert "GLOO_SOCKET_IFNAME" in finding.remedy.text


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(between_hosts(110e6), id="as fast as 1 Gb/s gets"),
        pytest.param(between_hosts(300e6, held_up=7), id="held up by others at the cores"),
        pytest.param(between_hosts(10e6, size=100_000), id="small ones"),
    ],
)
def test_between_hosts_any_network_is_good_enough(ranks: list[TraceBuilder]) -> None:
    assert "communication.low-bandwidth" not in found_in(*ranks)


F32: Final = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def buckets(
    *, ranks: int = 2, of: int = 2, uneven_ns: int = 0, large: tuple[int, ...] = (4, 4, 1), good: int = 0
) -> list[Job]:
    """Eight steps of a product and of sums of 64 MB parts in float32 over a link of 2 GB/s; some take longer."""
    jobs = [Job(H100, number=number) for number in range(ranks)]
    for step in together(jobs, 8):
        for job in jobs:
            job.launch("gemm", COMPUTE_NS)
        for at, parts in enumerate(large):
            size = parts * 64_000_000
            takes = round(2 * (of - 1) / of * size / 2e9 * 1e9) + (uneven_ns if (step + at) % 2 else 0)
            meet(jobs, F32, takes, **message("allreduce", size // 2, ranks=tuple(range(of)), dtype="Float"))
        for _ in range(good):
            meet(
                jobs, F32.replace("f32", "bf16"), 1_000_000, **message("allreduce", 64_000_000, ranks=tuple(range(of)))
            )
        for job in jobs:
            job.wait()
    return jobs


@pytest.mark.parametrize("good", [0, 3])
def test_sums_of_32_bits_may_send_half_of_their_bytes(good: int) -> None:
    """No change of the program brings another link: only the ceiling assumes it. Fast collectives stay as they are."""
    jobs = buckets(good=good)
    finding = found_in(*(job.built for job in jobs))["communication.low-bandwidth"]
    moves_ns = 9 * 64_000_000 / 2e9 * 1e9
    is_worth(finding, jobs[0].step_ns / (jobs[0].step_ns - moves_ns / 2), within=0.01)
    assert finding.gain is not None
    assert finding.gain.ceiling >= jobs[0].step_ns / (jobs[0].step_ns - 0.95 * moves_ns)
    assert finding.remedy is not None
    assert "bf16_compress_hook" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    ("options", "fires"),
    [
        pytest.param({}, True, id="two sizes at one rate"),
        pytest.param({"large": (4, 4, 4)}, False, id="one size: a late rank may make any rate"),
        pytest.param({"uneven_ns": 60_000_000}, False, id="waits that follow no size"),
    ],
)
def test_times_in_proportion_to_bytes_are_no_late_rank(options: dict[str, Any], *, fires: bool) -> None:
    """Two of four ranks were recorded."""
    jobs = buckets(of=4, **options)
    told = told_of(*(job.built for job in jobs))["communication.low-bandwidth"]
    assert (told.severity != "info") is fires
    assert bool(told.missing_signals) is not fires
