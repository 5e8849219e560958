"""What happens once is not what recurs: first calls that start something up are told and count for no step."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import case_of, found_in, told_of

from whystall.testing import TraceBuilder, trace

FIRST_NS = 40_000_000


def start(*, first_ns: int, steps: int = 2, again: bool = False, kernel: str = "gemm") -> TraceBuilder:
    """Steps of twenty small kernels each; the first launch of all takes long, or the one of every step does."""
    built = trace()
    at = 0
    for number in range(steps):
        begin = at
        for place in range(20):
            lasts = first_ns if place == 0 and (number == 0 or again) else 6_000
            built.operator("aten::mm", at=at, lasts=lasts + 14_000)
            built.launch(kernel, at=at + 4_000, call_lasts=lasts, runs_at=at + 5_000 + lasts, lasts=3_000)
            at += lasts + 20_000
        built.step(number, at=begin, lasts=at - begin)
    return built


def test_a_recording_that_is_mostly_a_start_promises_nothing_that_recurs() -> None:
    told = told_of(start(first_ns=FIRST_NS, steps=1))
    assert set(told) == {"host.warm-up"}
    assert (told["host.warm-up"].severity, told["host.warm-up"].gain) == ("minor", None)
    assert told["host.warm-up"].attributed_ns_per_step == FIRST_NS


def test_a_start_that_is_a_small_part_is_left_out_of_the_step() -> None:
    """Without the first launch a step is as long as the other one, and so is what its causes are worth."""
    short, long = start(first_ns=6_000), start(first_ns=1_200_000, steps=1)
    usual = case_of(start(first_ns=6_000, steps=1)).step_ns
    assert case_of(long).step_ns == pytest.approx(usual, rel=0.03)
    assert "host.warm-up" not in told_of(short)
    gain = found_in(start(first_ns=200_000, steps=1)).get("host.launch-bound")
    same = found_in(start(first_ns=6_000, steps=1)).get("host.launch-bound")
    assert gain is not None
    assert same is not None


@pytest.mark.parametrize("call", ["cudaFree", "cudaDeviceGetStreamPriorityRange", "hipStreamCreateWithFlags"])
def test_a_first_call_of_any_name_counts(call: str) -> None:
    built = start(first_ns=6_000)
    built.runtime(call, at=-FIRST_NS, lasts=FIRST_NS - 1_000)
    built.step(99, at=-FIRST_NS, lasts=FIRST_NS - 500)
    for place in range(3):
        built.runtime(call, at=1_000 + 30_000 * place, lasts=2_000)
    assert case_of(built).ranks[0].startup.sum() == 1


def test_what_takes_long_in_every_step_is_no_start() -> None:
    """All but the very first are of the second kind: the same kernel was launched before."""
    built = start(first_ns=2_000_000, steps=8, again=True)
    assert "host.launch-bound" in found_in(built)
    assert case_of(built).ranks[0].startup.sum() <= 1


def test_a_wait_for_the_device_is_no_start() -> None:
    built = start(first_ns=6_000)
    built.runtime("cudaDeviceSynchronize", at=5_000_000, lasts=FIRST_NS)
    assert not case_of(built).ranks[0].startup.any()


@pytest.mark.parametrize(("queued", "counts"), [(400, 0), (20, 1)])
def test_a_launch_that_waits_for_room_in_the_queue_is_no_start(queued: int, counts: int) -> None:
    """A kernel's first launch is long either way: behind a long queue it waits, behind a short one it loads."""
    built = trace()
    for place in range(queued):
        built.launch("gemm", at=10_000 * place, runs_at=100_000_000 * (place + 1), lasts=90_000_000)
    at = 10_000 * queued
    built.launch("softmax", at=at, call_lasts=FIRST_NS, runs_at=100_000_000 * (queued + 1), lasts=1_000)
    built.step(0, at=0, lasts=at + FIRST_NS + 1_000)
    built.step(1, at=at + FIRST_NS + 2_000, lasts=1_000)
    assert case_of(built).ranks[0].startup.sum() == counts
