"""The simulated loader against queues whose answer is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.probe.data.simulate import Costs, seconds_per_batch


def every(costs: Costs, workers: int, *, cores: int = 2, prefetch: int = 2) -> float:
    return seconds_per_batch(costs, workers, cores=cores, prefetch=prefetch)


@pytest.mark.parametrize(("workers", "expected"), [(1, 0.12), (2, 0.07), (4, 0.07)])
def test_cores_are_shared_with_who_takes_the_batches(workers: int, expected: float) -> None:
    # 0.12 s of a worker and 0.02 s of the taker: two cores give a batch every 0.07 s at the most.
    assert every(Costs([0.12], [0.0], 0.02), workers) == pytest.approx(expected, rel=0.02)


def test_one_core_does_one_thing_at_a_time() -> None:
    assert every(Costs([0.1], [0.0], 0.05), 1, cores=1) == pytest.approx(0.15, rel=0.02)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_waiting_for_storage_needs_no_core(workers: int) -> None:
    assert every(Costs([0.0], [0.4], 0.0), workers, cores=1) == pytest.approx(0.4 / workers, rel=0.02)


def test_one_process_takes_all_batches() -> None:
    assert every(Costs([0.01], [0.0], 0.05), 8, cores=16) == pytest.approx(0.05, rel=0.02)


def test_a_step_hides_what_workers_do() -> None:
    step = Costs([0.1], [0.0], 0.0, step_s=0.3)
    assert every(step, 1) == pytest.approx(0.3, rel=0.02)


def test_batches_come_in_order_so_that_a_slow_one_holds_up_those_behind_it() -> None:
    # Every tenth batch takes 2 s, all others none. In turn, two workers: one of them makes all slow ones.
    slow = Costs([0.0] * 10, [0.0] * 9 + [2.0], 0.0)
    shallow, deep = every(slow, 2, prefetch=1), every(slow, 2, prefetch=16)
    assert shallow == pytest.approx(0.2, rel=0.02)  # nothing is ready that could be handed out meanwhile
    assert deep <= shallow


@given(
    cpu=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6),
    wait=st.floats(0.0, 1.0),
    receive=st.floats(0.0, 0.5),
    workers=st.integers(1, 6),
    cores=st.integers(1, 4),
)
def test_no_resource_gives_more_than_it_has(
    cpu: list[float], wait: float, receive: float, workers: int, cores: int
) -> None:
    costs = Costs(cpu, [wait] * len(cpu), receive)
    mean = sum(cpu) / len(cpu)
    found = every(costs, workers, cores=cores)
    bounds = ((mean + wait) / workers, (mean + receive) / cores, receive)
    alone = mean + wait + receive
    assert max(bounds) * 0.75 <= found  # what few batches begin and end with is not quite a whole round
    assert found <= alone * 1.3 + max(cpu)
