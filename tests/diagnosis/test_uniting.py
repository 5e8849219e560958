"""One finding of each cause: on all ranks where it is at work, from all ways to know it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.diagnosis.cases import case_of, fixed, found_in, line, loader, loop, run

from whystall.diagnosis.candidate import Replayed, Sampled, Weighed
from whystall.diagnosis.case import Case
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.evidence import share
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.diagnosis.uniting import merged
from whystall.run_folder.samples import CALLED


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


def test_a_cause_that_costs_one_rank_much_more_is_that_ranks_and_bounded_by_what_the_others_do() -> None:
    """The other waits nine tenths of the step and works a tenth: it waits for the one that makes its batches itself."""
    runs = tuple(
        run(rank=rank, shares={"input": share, "backward": 1 - share}, on_cpu_share=work)
        for rank, share, work in ((0, 0.01, 0.1), (1, 0.95, 0.9))
    )
    found = diagnose(Case(runs=runs, facts=RunFacts(**loader(0))), RULES).findings
    [mine] = [finding for finding in found if finding.id == "input.synchronous-loader"]
    assert mine.scope.ranks == [1]
    assert mine.title.endswith("on rank 1, for which the others wait")
    assert mine.gain is not None
    assert 2 < mine.gain.floor <= mine.gain.expected <= 1 / 0.1


def test_that_others_wait_is_said_only_where_they_were_seen_to() -> None:
    """The other rank works nearly all the time: nobody knows that it waits for this one."""
    runs = (
        run(rank=0, shares={"backward": 0.99}, on_cpu_share=0.9),
        run(rank=1, shares={"input": 0.5, "backward": 0.5}, on_cpu_share=0.9),
    )
    found = diagnose(Case(runs=runs, facts=RunFacts(**loader(0))), RULES).findings
    [mine] = [finding for finding in found if finding.id == "input.synchronous-loader"]
    assert "others wait" not in mine.title


def test_a_rank_that_is_late_because_of_a_cause_of_its_own_follows_from_that() -> None:
    """Rank 1 works four fifths of the step, most of it in Python that the other does not run."""
    python = line(0.7, "reward = score(texts)", leaf="train:score")
    runs = (
        run(rank=0, shares={"backward": 0.9, "other": 0.02}, on_cpu_share=0.1),
        run(rank=1, shares={"backward": 0.2, "other": 0.7}, on_cpu_share=0.85, places=[python]),
    )
    found = diagnose(Case(runs=runs), RULES).findings
    assert [each.id for each in found if each.severity != "info"] == ["host.python"]
    [late] = [each for each in found if each.id == "communication.straggler"]
    assert (late.because, late.gain, late.remedy) == ("host.python", None, None)
    assert late.title == "One rank keeps the others waiting: rank 1, because of host.python"


def test_what_one_rank_alone_does_in_its_backward_pass_is_named_on_it() -> None:
    """A hook that sleeps: neither rank works, and both are in the backward pass nearly all the time."""
    runs = []
    for rank, sleeps in ((0, 0.0), (1, 0.6)):
        meet = line(0.95 - sleeps, "loss.backward()", part="backward", leaf="torch.autograd:backward", at=48)
        hook = line(sleeps, "time.sleep(0.03)", part="backward", leaf=CALLED, at=22)
        places = [meet, hook] if sleeps else [meet]
        runs.append(run(rank=rank, shares={"backward": 0.95}, on_cpu_share=0.15, places=places))
    [found] = [each for each in diagnose(Case(runs=tuple(runs)), RULES).findings if each.severity != "info"]
    assert (found.id, found.scope.ranks) == ("host.python", [1])
    assert [place.symbol for place in found.code] == ["time.sleep(0.03)"]
    assert found.gain is not None
    assert found.gain.floor <= 1 / 0.4 <= found.gain.ceiling


def test_ranks_that_run_different_code_are_not_blamed_for_it() -> None:
    """Two stages of a pipeline: each is found at lines of its own, and both take their time."""
    runs = tuple(
        run(
            rank=rank,
            shares={"forward": 0.5, "backward": 0.45},
            on_cpu_share=0.6,
            places=[line(0.5, f"stage_{rank}(x)", at=rank, part="forward", leaf=CALLED)],
        )
        for rank in (0, 1)
    )
    assert [each.id for each in diagnose(Case(runs=runs), RULES).findings if each.severity != "info"] == []


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


def test_numbers_of_recorded_steps_say_so_beside_those_of_the_whole_run() -> None:
    """A batch took 277 ms of the run's steps and 139 ms of recorded ones: two numbers, of two things."""
    more: dict[str, Any] = {"cause": "host.gc", "ranks": (0,), "attributed_ns": 1, "method": ""}
    of_run = Sampled(evidence=(share("of the steps", 0.36),), saved=(0.1, 0.2, 0.3), **more)
    of_window = Replayed(evidence=(share("of the step", 0.13),), removal=None, **more)
    for pair in ([of_run, of_window], [of_window, of_run]):
        [one] = merged([Weighed(each, 0.1, 0.2, 0.3, 0.2) for each in pair])
        assert [fact.what for fact in one.candidate.evidence] == ["of the steps", "in recorded steps: of the step"]


def test_a_cause_found_at_two_lines_is_told_once() -> None:
    looks = [line(0.1, "total += token"), line(0.1, "seen.add(token)")]
    found = diagnose(replace(Case(), runs=(run(shares={"other": 0.22}, places=looks),)), RULES).findings
    [python] = [finding for finding in found if finding.id == "host.python"]
    assert {place.symbol for place in python.code} == {"total += token", "seen.add(token)"}
