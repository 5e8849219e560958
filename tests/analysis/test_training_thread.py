"""Which thread runs the steps, where a recording has no marks of them."""

from __future__ import annotations

from whystall.analysis.hosts import training_thread
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import BACKWARD_THREAD, MAIN_THREAD


def passes(*, backward_on: int) -> TraceBuilder:
    """Three forward passes of 1 ms, and backward passes of twice that."""
    built = trace()
    for i in range(3):
        at = 4_000_000 * i
        built.operator("aten::mm", at=at, lasts=1_000_000)
        name = "autograd::engine::evaluate_function: MmBackward0"
        built.operator(name, at=at + 1_000_000, lasts=2_000_000, thread=backward_on)
        built.operator("MmBackward0", at=at + 1_001_000, lasts=1_990_000, thread=backward_on)
    return built


def thread_of(built: TraceBuilder) -> int:
    loaded = built.load()
    found = training_thread(loaded)
    assert found is not None
    return int(loaded.threads["tid"][found])


def test_autograds_own_thread_works_for_another_however_much_it_does() -> None:
    assert thread_of(passes(backward_on=BACKWARD_THREAD)) == MAIN_THREAD


def test_on_a_cpu_the_same_thread_runs_both_passes() -> None:
    built = passes(backward_on=MAIN_THREAD).operator("aten::stack", at=0, lasts=10_000, thread=300)
    assert thread_of(built) == MAIN_THREAD


def test_a_recording_of_the_backward_pass_alone_has_that_thread() -> None:
    built = trace().operator("autograd::engine::evaluate_function: MmBackward0", at=0, lasts=10, thread=300)
    assert thread_of(built) == 300
