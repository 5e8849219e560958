"""What follows from measurements that are given: rates, bounds, proposals."""

from __future__ import annotations

import pytest

from whystall.probe.data.predict import (
    Model,
    binding,
    bounds,
    gain_of,
    proposed_prefetch,
    proposed_workers,
    settings,
)
from whystall.probe.data.results import Settings
from whystall.probe.data.simulate import Costs


def model(
    cpu_s: float, wait_s: float, receive_s: float = 0.0, *, inline_s: float | None = None, **known: float
) -> Model:
    costs = Costs([cpu_s], [wait_s], receive_s)
    measured = {int(name[1:]): value for name, value in known.items()}
    inline = cpu_s + wait_s if inline_s is None else inline_s
    return Model(samples_per_batch=10, cores=2, prefetch=2, inline_s=inline, costs=costs, measured_s=measured)


def set_so(found: Model, workers: int, step_s: float | None = None) -> Settings:
    return settings(found, workers, prefetch=2, persistent=False, pin=None, step_s=step_s)


def test_what_was_measured_is_what_is_told_of_it() -> None:
    found = model(0.1, 0.0, w1=0.125, w2=0.08)
    assert found.samples_per_s(0) == pytest.approx(100)
    assert found.samples_per_s(1) == pytest.approx(80, rel=0.02)
    assert found.samples_per_s(2) == pytest.approx(125, rel=0.02)


def test_what_storage_adds_is_waited_for_in_each_batch_and_by_workers_side_by_side() -> None:
    found = model(0.0, 0.1, w1=0.1, w2=0.05)
    assert found.samples_per_s(0, extra_wait_s=0.1) == pytest.approx(50)
    assert found.samples_per_s(1, extra_wait_s=0.1) == pytest.approx(50, rel=0.02)
    assert found.samples_per_s(2, extra_wait_s=0.1) == pytest.approx(100, rel=0.02)


def test_what_was_not_measured_is_stretched_as_the_nearest() -> None:
    # Two workers were measured 1.6 times as slow as two cores would be: so are three and four.
    found = model(0.1, 0.0, w1=0.1, w2=0.08)
    assert found.samples_per_s(4) == pytest.approx(125, rel=0.02)


def test_tensors_in_memory_want_no_workers() -> None:
    found = model(0.001, 0.0, 0.001, inline_s=0.0002, w1=0.002, w2=0.002)
    assert proposed_workers(found, 8, None) == 0
    assert proposed_prefetch(found, 0, None) is None


def test_waiting_wants_as_many_as_there_may_be() -> None:
    assert proposed_workers(model(0.0, 0.1), 8, None) == 8


def test_no_more_workers_than_cores_for_what_computes() -> None:
    assert proposed_workers(model(0.1, 0.0), 8, None) == 2


def test_a_step_that_is_long_enough_wants_one_worker() -> None:
    found = model(0.1, 0.0)
    assert proposed_workers(found, 8, step_s=0.5) == 1
    assert found.wait_s(0, 0.5) == pytest.approx(0.1)
    assert found.wait_s(1, 0.5) == pytest.approx(0.0, abs=1e-6)


def test_a_step_that_hardly_waits_is_left_as_it_is() -> None:
    assert proposed_workers(model(0.001, 0.0), 8, step_s=0.5) == 0


def test_the_gain_is_of_steps_where_their_time_is_known() -> None:
    found = model(0.1, 0.0)
    assert gain_of(set_so(found, 0, 0.4), set_so(found, 1, 0.4), 0.4) == pytest.approx(1.25, rel=0.01)
    assert gain_of(set_so(found, 0), set_so(found, 2), None) == pytest.approx(2.0, rel=0.02)


def test_bounds_are_what_each_resource_gives_alone() -> None:
    found = {one.resource: one.samples_per_s for one in bounds(model(0.06, 0.5, 0.04), 4, None)}
    assert found["CPU cores"] == pytest.approx(10 * 2 / 0.1)
    assert found["storage"] == pytest.approx(10 * 4 / 0.5)
    assert found["IPC"] == pytest.approx(10 / 0.04)
    assert found["pinning"] is None
    assert binding(bounds(model(0.06, 0.5, 0.04), 4, None)) == "storage"
    assert binding(bounds(model(0.06, 0.5, 0.04), 30, None)) == "CPU cores"


def test_what_is_not_there_binds_nothing_and_says_why() -> None:
    found = bounds(model(0.1, 0.0), 0, None)
    assert {one.resource: one.unknown_because for one in found if one.samples_per_s is None} == {
        "storage": "hardly anything was waited for",
        "IPC": "there is none without workers",
        "pinning": "there is no GPU here",
        "copy": "there is no GPU here",
    }
