"""The mean of the steady steps, exact to the nanosecond, and when fast and slow steps are told apart."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whystall
from whystall.analysis.results import Ledger, Step
from whystall.analysis.steadiness import mean_step, steady, unlike_steps
from whystall.testing import trace

parts = st.builds(Ledger, **{name: st.integers(0, 10**10) for name in Ledger().parts()})


def step(ledger: Ledger, number: int = 0) -> Step:
    window = ledger.total_ns
    return Step(
        name=f"s{number}", gpu_events=1, start_ns=number, window_ns=window, device_span_ns=window, host_ns=window,
        busy_ns=0, compute_ns=0, communication_ns=0, memory_ns=0, ledger=ledger,
    )  # fmt: skip


def of(windows: Sequence[int]) -> list[Step]:
    return [step(Ledger(compute=window // 2, idle_sync=window - window // 2), at) for at, window in enumerate(windows)]


@given(st.lists(parts, min_size=1, max_size=12))
def test_the_mean_adds_up_and_each_part_is_within_a_nanosecond_of_its_own(ledgers: list[Ledger]) -> None:
    found = mean_step([step(ledger, number) for number, ledger in enumerate(ledgers)])
    assert found is not None
    chosen = ledgers[2:-1] if len(ledgers) >= 6 else ledgers
    assert found.steps == len(chosen)
    assert found.window_ns == found.ledger.total_ns == sum(ledger.total_ns for ledger in chosen) // len(chosen)
    for name, ns in found.ledger.parts().items():
        assert abs(ns - sum(getattr(ledger, name) for ledger in chosen) / len(chosen)) <= 1.001


def test_filling_queues_and_the_cut_last_step_are_left_out() -> None:
    steps = of([900, 500, 100, 100, 100, 7])
    assert [one.window_ns for one in steady(steps)] == [100, 100, 100]
    assert len(steady(steps[:5])) == 5
    assert mean_step([]) is None


@pytest.mark.parametrize(
    ("spans", "windows", "left"),
    [
        ([60, 60, 60], [100, 100, 60], 2),  # the host prepares each step for 40, which the last one lacks behind it
        ([60, 60, 60], [62, 62, 60], 3),
        ([60, 60, 30], [100, 100, 30], 3),  # another step, and a shorter one
        ([60, 60], [100, 60], 2),
    ],
)
def test_of_few_steps_a_last_one_that_lacks_its_tail_is_left_out(
    spans: list[int], windows: list[int], left: int
) -> None:
    steps = [msgspec.structs.replace(one, device_span_ns=span) for one, span in zip(of(windows), spans, strict=True)]
    assert len(steady(steps)) == left


@pytest.mark.parametrize(("host", "differ"), [(110, False), (60, True)])
def test_a_last_step_whose_host_works_on_after_its_last_kernel_is_no_fast_one(host: int, *, differ: bool) -> None:
    """Its window ends with its own events, those of the others with the next step's begin."""
    *others, last = of([130, 128, 90])
    steps = [*others, msgspec.structs.replace(last, host_ns=host)]
    assert (unlike_steps(steps) is not None) == differ


def test_of_a_job_with_fast_and_slow_steps_in_turn_both_are_told() -> None:
    """Half of the steps wait four fifths of their time: a median step would show one of the halves."""
    fast, slow = Ledger(compute=100_000), Ledger(compute=100_000, idle_input=400_000)
    steps = [step(slow if number % 2 else fast, number) for number in range(12)]
    mean = mean_step(steps)
    found = unlike_steps(steps)
    assert mean is not None
    assert found is not None
    assert mean.ledger.idle_input / mean.window_ns == pytest.approx((4 * 400) / (9 * 100 + 4 * 400), rel=1e-4)
    assert (found.usual.window_ns, found.slow.window_ns, found.slow_steps, found.steps) == (100_000, 500_000, 4, 9)


@pytest.mark.parametrize(
    ("windows", "told"),
    [
        ([100] * 10, False),
        ([90, 95, 100, 105, 110, 92, 97, 103, 108, 100], False),  # a scatter of a tenth
        ([100, 100, 100, 100, 100, 100, 124, 100], False),
        ([100, 100, 100, 100, 100, 100, 126, 100], True),
        ([900, 900, 100, 100, 100, 7], False),  # the slow ones are those that are left out
        ([100, 500], False),
    ],
)
def test_what_is_told_apart(windows: list[int], *, told: bool) -> None:
    assert (unlike_steps(of(windows)) is not None) is told


@pytest.mark.parametrize("early", ["Memcpy HtoD (Pinned -> Device)", "ncclDevKernel_AllGather_RING_LL", "split_copy"])
def test_work_of_another_stream_that_runs_ahead_begins_no_step(early: str) -> None:
    """The host is three steps ahead: copies and gathers run at once on another stream, the step's kernels in turn."""
    built = trace()
    for number in range(4):
        at = number * 1_000
        built.step(number, at=at, lasts=1_000)
        built.launch(early, at=at + 100, runs_at=at + 200, lasts=100, stream=21)
        built.launch("gemm", at=at + 400, runs_at=10_000 * number + 5_000, lasts=9_000, stream=7)
    [device] = whystall.analyze(built.load(), cache=False).devices
    assert [step.window_ns for step in device.steps] == [10_000, 10_000, 10_000, 9_000]
    assert unlike_steps(device.steps) is None


def test_a_step_that_begins_on_another_stream_begins_there() -> None:
    """Each step renders on one stream and learns on the other, which waits for it: nothing runs ahead."""
    built, at = trace(), 0
    lasts = [8_000, 8_000, 18_000, 8_000]
    for number, whole in enumerate(lasts):
        built.step(number, at=at, lasts=whole)
        built.launch("render", at=at + 100, runs_at=at + 200, lasts=whole - 6_000, stream=20)
        built.launch("gemm", at=at + 300, runs_at=at + whole - 5_700, lasts=5_500, stream=7)
        at += whole
    [device] = whystall.analyze(built.load(), cache=False).devices
    assert [step.window_ns for step in device.steps][:3] == lasts[:3]
