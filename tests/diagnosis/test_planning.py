"""The order in which causes are removed, and what that makes of a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.cases import case_of, diagnosed, fixed, loop

from whystall.diagnosis.diagnose import diagnose

SHARED = Path(__file__).parents[3] / "shared" / "traces"


def test_two_causes_are_planned_together_and_never_added_up() -> None:
    found = diagnosed(loop(fetch_ns=700_000, python_ns=400_000))
    assert {finding.id for finding in found.findings if finding.severity != "info"} == {
        "input.synchronous-loader",
        "host.python",
    }
    assert found.plan is not None
    assert found.plan.causes == ["input.synchronous-loader", "host.python"]
    whole = 700 + 400 + 1_000 + 2 + 15
    assert found.plan.speedups[0] == pytest.approx(whole / (whole - 700), rel=0.03)
    assert found.plan.speedups[1] == pytest.approx(whole / (whole - 1_100), rel=0.03)


def test_a_plan_counts_a_cause_for_what_samples_found_it_to_be_worth() -> None:
    """Its replay saves four fifths, of which samples found a quarter: after a half it adds a quarter of three
    tenths.
    """
    rules = [fixed("host.gc", 0.5), fixed("host.sync", 0.8, saved=(0.2, 0.2, 0.2))]
    plan = diagnose(case_of(loop()), rules).plan
    assert plan is not None
    assert plan.causes == ["host.gc", "host.sync"]
    assert plan.speedups == pytest.approx([1 / (1 - 0.5), 1 / (1 - 0.5 - 0.3 / 4)], rel=0.02)


def test_no_plan_gains_less_than_one_of_its_causes_alone() -> None:
    """Samples found a cause to be worth six tenths of a step, of which the recorded steps show three."""
    rules = [fixed("host.gc", 0.3, saved=(0.6, 0.6, 0.6)), fixed("host.sync", 0.5, saved=(0.28, 0.28, 0.28))]
    plan = diagnose(case_of(loop()), rules).plan
    assert plan is not None
    assert plan.causes == ["host.gc", "host.sync"]
    assert plan.speedups[-1] >= 1 / (1 - 0.6)
    assert plan.speedups == sorted(plan.speedups)
