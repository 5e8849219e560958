"""Recordings that show the device and the runtime's calls alone: no operator says that ``backward()`` hands over."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, GAP_NS, LATENCY_NS, message

import whystall
from whystall.analysis.hosts import taking_turns
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import MAIN_THREAD

AUTOGRAD: Final = MAIN_THREAD + 57
CALL_NS: Final = 5_000
STEPS: Final = 12


def launches(
    built: TraceBuilder, at: int, free: int, kernels: list[tuple[str, int]], *, pause_ns: int, thread: int
) -> tuple[int, int]:
    """Launches of one thread, some host time apart; when the host is done, and when the device is."""
    for name, lasts in kernels:
        runs_at = max(at + LATENCY_NS, free + GAP_NS)
        built.launch(name, at=at, call_lasts=CALL_NS, runs_at=runs_at, lasts=lasts, thread=thread)
        free = runs_at + lasts
        at += CALL_NS + pause_ns
    return at, free


def job(
    kernel_ns: int, *, copy_ns: int = 100_000, pause_ns: int = 3_000, count: int = 30, name: str = "gemm"
) -> tuple[TraceBuilder, float]:
    """Forward on one thread, backward on another, and a read of the loss; and how long one step takes."""
    built, at, free = trace(deviceProperties=[A100]), 0, 0
    begins = []
    for _ in range(STEPS):
        begins.append(at)
        forward = [("Memcpy HtoD (Pageable -> Device)", copy_ns), *[(name, kernel_ns)] * count]
        at, free = launches(built, at, free, forward, pause_ns=pause_ns, thread=MAIN_THREAD)
        at, free = launches(
            built, at + 9_000, free, [(name, kernel_ns)] * 2 * count, pause_ns=pause_ns, thread=AUTOGRAD
        )
        end = max(at, free) + 2_000
        built.runtime("cudaDeviceSynchronize", at=at, lasts=end - at)
        at = end + 20_000
    return built, (begins[-1] - begins[1]) / (STEPS - 2)


def test_threads_that_wait_for_each_other_take_turns() -> None:
    loaded = job(100_000)[0].load()
    found = taking_turns(loaded)
    assert found is not None
    first, others = found
    assert loaded.threads["tid"][first] == str(MAIN_THREAD)
    assert [loaded.threads["tid"][other] for other in others] == [str(AUTOGRAD)]


def test_a_thread_that_launches_in_between_takes_no_turns() -> None:
    """One launches every 10 us, the other every 13 us: whoever removes work of one knows nothing of the other."""
    built = trace()
    for number in range(200):
        built.launch("gemm", at=number * 10_000, call_lasts=3_000, runs_at=number * 10_000 + 5_000, lasts=2_000)
    for number in range(150):
        at = number * 13_000 + 4_000
        built.launch("copy", at=at, call_lasts=3_000, runs_at=at + 5_000, lasts=2_000, stream=9, thread=AUTOGRAD)
    assert taking_turns(built.load()) is None


def test_where_operators_say_it_calls_are_not_asked() -> None:
    assert taking_turns(job(100_000)[0].operator("aten::mm", at=0, lasts=10).load()) is None


def test_kernels_that_two_threads_launch_gain_all_that_they_take_too_long() -> None:
    """Products in fp32 take a step of 90 x 0.3 ms; the gain's interval holds the peak ratio, and is no 1.00."""
    built, _ = job(300_000, name="ampere_sgemm_128x64_tn")
    gain = found_in(built)["compute.fp32-matmul"].gain
    assert gain is not None
    assert gain.ceiling > 3


@pytest.mark.parametrize(("kernel_ns", "pause_ns"), [(3_000, 3_000), (5_000, 8_000), (15_000, 15_000)])
def test_launches_of_two_threads_gain_no_more_than_the_device_leaves(kernel_ns: int, pause_ns: int) -> None:
    """The device works 90 kernels a step, launched one by one: what is not its work is the host's on both threads."""
    built, step_ns = job(kernel_ns, pause_ns=pause_ns, copy_ns=2_000)
    gain = found_in(built)["host.launch-bound"].gain
    assert gain is not None
    work_ns = 90 * kernel_ns
    # Half of the host's calls are autograd's: without these a step keeps more than half of its launches.
    assert 1.2 <= gain.expected <= step_ns / work_ns * 1.01
    assert gain.floor <= step_ns / (work_ns + 90 * GAP_NS) <= max(gain.ceiling, 1.01 * step_ns / work_ns)


def straggler(rank: int) -> TraceBuilder:
    """Twenty exchanges between three ranks, of which the second computes half as long again; no step is marked."""
    built = trace(distributedInfo={"rank": rank, "world_size": 3})
    at = free = 0
    for _ in range(20):
        works = 1_500_000 if rank == 1 else 1_000_000
        at, free = launches(built, at, free, [("gemm", works)], pause_ns=1_000, thread=MAIN_THREAD)
        begin, end = free + GAP_NS, free - works + 1_500_000 + GAP_NS + 100_000
        name, said = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", message("allreduce", 1 << 20, ranks=(0, 1, 2))
        built.launch(name, at=at, call_lasts=CALL_NS, runs_at=begin, lasts=end - begin, **said)
        at, free = end + 5_000, end
    return built


def test_a_rank_is_compared_with_its_peers_where_no_step_is_marked() -> None:
    ranks = [straggler(rank).load() for rank in range(3)]
    finding = next(one for one in whystall.analyze(ranks).findings if one.id == "communication.straggler")
    assert finding.gain is not None
    assert finding.scope.ranks == [1]
    assert finding.gain.expected == pytest.approx(1.6 / 1.1, rel=0.05)


def test_the_times_of_a_made_job_are_what_its_device_needs() -> None:
    """The oracle of this file: a step of a job that its device bounds is the sum of its kernels, but for a start."""
    _, step_ns = job(500_000, copy_ns=0, count=10)
    assert step_ns == pytest.approx(30 * (500_000 + GAP_NS), rel=0.01)
