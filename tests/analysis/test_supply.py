"""Samples per second that a loader supplies and that steps would take, of runs with known times."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.diagnosis.cases import HEALTHY, STEP_NS
from tests.diagnosis.cases import run as a_run

from whystall.analysis.supply import input_supply

SECONDS = STEP_NS / 1e9


def shares(waited: float) -> dict[str, float]:
    return {**HEALTHY, "input": waited, "forward": 0.9 - waited, "backward": 0.1}


def test_without_workers_batches_are_made_while_the_step_waits() -> None:
    found = input_supply([a_run(shares=shares(0.75))], 32, [{"workers": 0}])

    # Of a step of 0.1 s 75 ms make a batch of 32, and 25 ms work on it.
    assert found is not None
    assert found.supply_per_s == pytest.approx(32 / (0.75 * SECONDS))
    assert found.demand_per_s == pytest.approx(32 / (0.25 * SECONDS))
    assert not found.at_least


@pytest.mark.parametrize(("waited", "at_least"), [(0.5, False), (0.02, False), (0.019, True), (0.0, True)])
def test_with_workers_the_step_gets_what_they_supply(waited: float, *, at_least: bool) -> None:
    found = input_supply([a_run(shares=shares(waited))], 32, [{"workers": 0}, {"workers": 4}])

    assert found is not None
    assert found.supply_per_s == pytest.approx(32 / SECONDS)
    assert found.demand_per_s == pytest.approx(32 / ((1 - waited) * SECONDS))
    assert found.at_least is at_least
    assert found.supply_per_s <= found.demand_per_s


def test_nothing_is_said_where_samples_or_steps_are_not_known() -> None:
    run = a_run(shares=shares(0.5))

    assert input_supply([run], None, []) is None
    assert input_supply([], 32, []) is None
    assert input_supply([replace(run, shares={"forward": 1.0})], 32, []) is None
    assert input_supply([a_run(shares=shares(0.5), profiled=100)], 32, []) is None


def test_the_first_rank_is_told_whatever_the_order() -> None:
    ranks = [a_run(shares=shares(0.5), rank=1), a_run(shares=shares(0.25), rank=0)]

    assert input_supply(ranks, 32, []) == input_supply(ranks[::-1], 32, [])
    found = input_supply(ranks, 32, [])
    assert found is not None
    assert (found.rank, found.waited_share) == (0, 0.25)
