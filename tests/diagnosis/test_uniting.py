"""One finding of each cause: on all ranks where it is at work, from all ways to know it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.diagnosis.cases import case_of, fixed, found_in, line, loader, loop, run

from whystall.diagnosis.case import Case, RunFacts
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.rules import RULES


def test_a_cause_on_several_ranks_is_one_finding_worth_at_least_what_it_costs_where_it_costs_least() -> None:
    runs = tuple(
        run(rank=rank, shares={"input": share}, on_cpu_share=1 - share) for rank, share in ((0, 0.2), (1, 0.4))
    )
    found = diagnose(Case(runs=runs, facts=RunFacts(**loader(0))), RULES).findings
    mine = [finding for finding in found if finding.id == "input.synchronous-loader"]
    assert [finding.scope.ranks for finding in mine] == [[0, 1]]
    gain = mine[0].gain
    assert gain is not None
    assert gain.floor <= 1 / (1 - 0.2)
    assert gain.ceiling >= 1 / (1 - 0.4)


def test_what_two_recorded_ranks_have_in_common_is_one_finding_of_both() -> None:
    found = found_in(loop(fetch_ns=500_000), loop(fetch_ns=500_000))
    assert found["input.synchronous-loader"].scope.ranks == [0, 1]


def test_a_rank_that_a_cause_costs_next_to_nothing_is_not_named_with_it() -> None:
    found = found_in(loop(fetch_ns=500_000), loop(fetch_ns=20_000))
    assert found["input.synchronous-loader"].scope.ranks == [0]


def test_what_samples_measured_goes_before_what_was_replayed_and_both_are_evidence() -> None:
    """The recording is of a part that the cause takes half of; over the whole run it takes a fifth."""
    rules = [fixed("host.gc", 0.5), fixed("host.gc", 0.5, saved=(0.15, 0.2, 0.25))]
    [found] = diagnose(case_of(loop()), rules).findings
    assert found.gain is not None
    assert found.gain.expected == pytest.approx(1 / (1 - 0.2), rel=0.01)


def test_a_cause_found_at_two_lines_is_told_once() -> None:
    looks = [line(0.1, "total += token"), line(0.1, "seen.add(token)")]
    found = diagnose(replace(Case(), runs=(run(shares={"other": 0.22}, places=looks),)), RULES).findings
    [python] = [finding for finding in found if finding.id == "host.python"]
    assert {place.symbol for place in python.code} == {"total += token", "seen.add(token)"}
