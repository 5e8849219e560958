"""What a cause is worth: the fire rule, experiments before replays, and of what a gain is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.diagnosis.cases import case_of, diagnosed, fixed, found_in, loader, loop, run
from tests.diagnosis.jobs import Job

import whystall
import whystall.plugins
from whystall.diagnosis.candidate import Candidate, Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.experiment import outcome
from whystall.diagnosis.gains import MOST_SAVED, scaled, severity_of
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.diagnosis.weighing import LEAST_SHARE
from whystall.replay.graph import Change
from whystall.testing import trace

SHARED = Path(__file__).parents[3] / "shared" / "traces"


def test_what_costs_less_than_two_per_cent_does_not_fire() -> None:
    assert [f for f in diagnosed(loop(fetch_ns=15_000)).findings if f.severity != "info"] == []


@settings(max_examples=20)
@given(st.floats(0, 0.9), st.floats(0, 0.9))
@example(share=0.125, uncertainty=0.875)
def test_gains_are_ordered_and_fire_only_above_the_least(share: float, uncertainty: float) -> None:
    found = diagnose(case_of(loop()), [fixed("host.gc", share, uncertainty=uncertainty)])
    for finding in found.findings:
        assert finding.gain is not None
        assert 1 <= finding.gain.floor <= finding.gain.expected <= finding.gain.ceiling
        # What is expected to be worth it and may not be is told as "Perhaps": it does not fire.
        assert finding.severity == "info" or finding.gain.floor >= 1 / (1 - LEAST_SHARE) - 1e-4


@pytest.mark.parametrize(
    ("with_change", "base", "gain"),
    [
        (0.8, 1.0, 1.25),  # measured, so that the replay's 2.0 no longer counts
        (1.0, 1.0, None),  # without it the step is no shorter
        (0.4, 0.4, 2.0),  # these runs never came to it: the steps were short from the beginning
    ],
)
def test_an_experiment_goes_before_a_replay(with_change: float, base: float, gain: float | None) -> None:
    case = case_of(loop())
    step = case.step_ns
    tried = outcome("gc", round(step * with_change), [round(step * base)], None, [])
    case = replace(case, facts=RunFacts(experiments=(tried,)))
    found = diagnose(case, [fixed("host.gc", 0.5), fixed("host.sync", 0.2, rivals=("host.gc",))]).findings
    gains = {one.id: one.gain.expected for one in found if one.gain is not None}
    assert gains.get("host.gc") == (None if gain is None else pytest.approx(gain, rel=0.02))
    assert gains["host.sync"] == pytest.approx(1.25, rel=0.02)
    if gain is None:
        [rejected] = found[0].rejected
        assert rejected.id == "host.gc"
        assert "an experiment went without it (garbage collection off)" in rejected.because


@pytest.mark.parametrize(
    ("saved", "severity"), [(0.0, "info"), (0.02, "info"), (0.04, "minor"), (0.1, "major"), (0.2, "critical")]
)
def test_severity_follows_the_speed_gained(saved: float, severity: str) -> None:
    assert severity_of(saved) == severity


def test_a_removal_that_leaves_nothing_of_a_step_has_a_gain_nevertheless() -> None:
    """Of a damaged trace a step may have nothing but what is removed."""
    assert severity_of(1.0) == "critical"
    assert scaled(1.0, 1.0) == pytest.approx(MOST_SAVED)
    assert 0 < scaled(1.0, 0.5) < MOST_SAVED


def test_the_gain_of_a_single_step_is_of_its_device_window() -> None:
    """From its first device event to its last, as its ledger: what the host did before may have been hidden."""
    built = loop(fetch_ns=1_000_000, steps=1)
    built.operator("aten::zeros", at=-9_000_000, lasts=10_000)
    case = case_of(built)
    assert case.has_steps
    assert case.step_ns == case.ranks[0].analysis.devices[0].steps[0].window_ns
    assert not [one for one in diagnose(case, RULES).findings if one.gain and one.gain.expected > 1.01]


def test_the_gain_of_a_recording_without_steps_is_of_its_device_window() -> None:
    built = trace().operator("aten::zeros", at=0, lasts=3_000_000)
    for i in range(10):
        at = 3_000_000 + 100_000 * i
        built.operator("aten::mm", at=at, lasts=9_000)
        built.launch("gemm", at=at + 1_000, call_lasts=5_000, runs_at=at + 10_000, lasts=95_000)
    case = case_of(built)
    assert case.step_ns == case.ranks[0].analysis.devices[0].window_ns


def test_a_recording_of_few_uneven_steps_hides_nothing_that_samples_of_the_run_measured() -> None:
    """Three recorded steps of 1, 2 and 4 ms are known to within a half; the run's own steps are even."""
    built = trace()
    at = 0
    for number, lasts in enumerate((1_000_000, 2_000_000, 4_000_000)):
        built.step(number, at=at, lasts=lasts)
        built.operator("aten::mm", at=at + 1_000, lasts=lasts - 2_000)
        at += lasts
    sampled = run(shares={"input": 0.4})
    case = case_of(built, facts=RunFacts(**loader(0)), runs=[sampled])
    assert case.noise > 0.25
    found = {one.id: one.severity for one in diagnose(case, RULES).findings}
    assert found["input.synchronous-loader"] != "info"


def test_what_an_earlier_step_left_to_the_device_is_no_part_of_a_single_step() -> None:
    built = trace()
    built.launch("gemm", at=0, call_lasts=5_000, runs_at=10_000, lasts=5_000_000)
    built.step(1, at=100_000, lasts=200_000)
    built.operator("aten::mm", at=110_000, lasts=50_000)
    built.launch("gemm", at=120_000, call_lasts=5_000, runs_at=5_010_001, lasts=1_000_000)
    assert case_of(built).step_ns == 1_000_000


def test_without_steps_gains_are_of_the_recording_and_say_so() -> None:
    built = trace()
    for at in range(0, 4_000_000_000, 1_000_000_000):
        built.operator("aten::mm", at=at, lasts=20_000)
        built.launch("gemm", at=at + 5_000, call_lasts=5_000, runs_at=at + 12_000, lasts=1_000_000)
    report = whystall.analyze(built.load())
    assert report.noise is None
    found = next(one for one in report.findings if one.id == "host.python")
    assert found.gain is not None
    assert found.gain.of == "recording"
    assert {one.per for one in found.evidence} <= {None, "recording"}
    assert "times as fast without it" in report.verdict.summary
    assert "of 3.00 s" in report.verdict.summary


def test_what_makes_the_few_recorded_steps_differ_is_no_chance_that_hides_it() -> None:
    """Python of 5 ms in most of six steps, twice as long in one: without it they are alike."""
    job = Job()
    for number in job.steps(6):
        begin = job.at
        lasts = (5, 5, 10, 5, 0, 5)[number] * 1_000_000
        if lasts:
            job.python(lasts)
            job.built.python("train.py(12): reward", at=begin, lasts=lasts)
        job.operator("aten::mm", "gemm", 1_000_000)
        job.wait()
    found = found_in(job.built)["host.python"]
    assert found.gain is not None
    assert found.gain.floor > 2


def removing(cause: str, *lengths_ms: int, **more: Any) -> Rule:
    """A rule that proposes to remove the operators of such lengths."""

    def find(case: Case) -> Iterator[Candidate]:
        graph = case.replayed
        gone = np.isin(np.round(graph.duration / 1e6), lengths_ms)
        removal = Change(duration=np.where(gone, 0, graph.duration))
        yield Replayed(cause=cause, evidence=(), ranks=(0,), removal=removal, attributed_ns=case.step_ns, **more)

    return Rule(causes()[cause], (Finder(find, ("trace",)),))


def test_what_samples_show_of_a_cause_goes_from_the_general_ones_as_a_replay_of_it_does() -> None:
    """The replay alone is not sure enough to fire. Of 25 ms 20 are that cause's."""

    def sampled(_: Case) -> Iterator[Candidate]:
        yield Sampled(
            cause="host.gc", evidence=(), ranks=(0,), attributed_ns=20_000_000, saved=(0.1, 0.17, 0.2), method="samples"
        )

    job = Job()
    for _ in job.steps(8):
        for lasts_ms in (20, 5, 85):
            with job.inside("aten::mm"):
                job.python(lasts_ms * 1_000_000)
    replayed = removing("host.gc", 20, uncertainty=1.0)
    specific = Rule(replayed.cause, (Finder(sampled, ("trace",)), *replayed.finders))
    found = diagnose(case_of(job.built), [specific, removing("host.launch-bound", 20, 5, tier=2)]).findings
    assert [one.id for one in found][:2] == ["host.gc", "host.launch-bound"]


@pytest.mark.parametrize(
    ("own_ms", "general", "first"),
    [
        (15, {"tier": 2}, "host.launch-bound"),  # 35 ms of 120, of which 15 are left once the specific cause is gone
        (5, {"tier": 2}, "host.gc"),  # 25 ms, of which 20 are the specific cause's
        (15, {"tier": 1, "holds_back": True}, "host.launch-bound"),  # waits of the host, behind which more can hide
        (5, {"tier": 1, "holds_back": True}, "host.gc"),
        (15, {"tier": 1}, "host.gc"),
    ],
)
def test_a_general_cause_goes_first_where_it_is_mostly_at_work_by_itself(
    own_ms: int, general: dict[str, Any], first: str
) -> None:
    job = Job()
    for _ in job.steps(8):
        for lasts_ms in (20, own_ms, 85):
            with job.inside("aten::mm"):
                job.python(lasts_ms * 1_000_000)
    rules = [removing("host.gc", 20), removing("host.launch-bound", 20, own_ms, **general)]
    assert next(one.id for one in diagnose(case_of(job.built), rules).findings) == first
