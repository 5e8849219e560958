"""How candidates become findings: the fire rule, competition, what is hidden, what comes next, what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whystall
from whystall.analysis.trace_analysis import analyze_trace
from whystall.diagnosis.candidate import Candidate, Replayed, Sampled
from whystall.diagnosis.case import Case, RunFacts
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.detectors.host_calls import hidden as what_is_hidden
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.experiment import outcome
from whystall.diagnosis.finding import Diagnosis
from whystall.diagnosis.gains import severity_of
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.rules.host import python, sync
from whystall.diagnosis.rules.host.pageable_copy import pinned_bytes_per_s
from whystall.diagnosis.weighing import LEAST_SHARE
from whystall.replay.build import build_graph
from whystall.replay.graph import Change
from whystall.testing import TraceBuilder, trace

SHARED = Path(__file__).parents[3] / "shared" / "traces"


def loop(*, python_ns: int = 0, fetch_ns: int = 0, kernel_ns: int = 1_000_000, steps: int = 10) -> TraceBuilder:
    """Steps of a fetch, a stretch of Python, two operators of 20 us with a kernel each, and a wait for them."""
    built = trace()
    at = 0
    for number in range(steps):
        begin = at
        if fetch_ns:
            built.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at=at, lasts=fetch_ns)
        at += fetch_ns + python_ns
        for _ in range(2):
            built.operator("aten::mm", at=at, lasts=20_000)
            built.launch("gemm", at=at + 5_000, call_lasts=5_000, runs_at=at + 12_000, lasts=kernel_ns // 2)
            at += kernel_ns // 2 + 1_000
        built.runtime("cudaDeviceSynchronize", at=at, lasts=15_000)
        at += 15_000
        built.step(number, at=begin, lasts=at - begin)
    return built


def case_of(built: TraceBuilder) -> Case:
    recorded = built.load()
    graph = build_graph([(0, recorded)])
    return Case(ranks=(RankCase(0, recorded, analyze_trace(recorded)),), graph=graph)


def diagnosed(built: TraceBuilder) -> Diagnosis:
    return diagnose(case_of(built), RULES)


def test_a_fetch_fires_with_the_gain_that_it_costs() -> None:
    found = diagnosed(loop(fetch_ns=500_000)).findings[0]
    assert found.id == "input.synchronous-loader"
    assert found.gain is not None
    step = 500 + 1_000 + 2 + 15
    assert found.gain.floor <= step / (step - 500) <= found.gain.ceiling
    assert found.severity == "critical"
    assert found.attributed_ns_per_step == pytest.approx(500_000, rel=0.01)


def test_what_costs_less_than_two_per_cent_does_not_fire() -> None:
    assert [f for f in diagnosed(loop(fetch_ns=15_000)).findings if f.severity != "info"] == []


def test_a_healthy_loop_has_no_finding_and_says_so() -> None:
    report = whystall.analyze(loop().load())
    assert [finding.id for finding in report.findings if finding.severity != "info"] == []
    assert report.verdict.summary.startswith("Healthy")
    assert report.verdict.cause is None


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


def test_every_finding_has_what_a_finding_owes() -> None:
    for finding in diagnosed(loop(fetch_ns=700_000, python_ns=400_000)).findings:
        assert finding.id in causes()
        assert finding.evidence
        assert 0 < finding.confidence <= 1
        if finding.severity != "info":
            assert finding.remedy is not None
            assert finding.verify is not None
            assert "whystall verify" in finding.verify.command


def fixed(cause: str, share: float, **more: object) -> Rule:
    """A rule that proposes to remove a share of everything."""

    def find(case: Case) -> Iterator[Candidate]:
        left = (case.replayed.duration * (1 - share)).astype(np.int64)
        values = {"removal": Change(duration=left), "attributed_ns": case.step_ns, **more}
        kind = Sampled if "saved" in more else Replayed
        yield kind(cause=cause, evidence=(), ranks=(0,), **values)  # type: ignore[arg-type]

    return Rule(causes()[cause], (Finder(find, ("trace",)),))


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 0.9), st.floats(0, 0.9))
def test_gains_are_ordered_and_fire_only_above_the_least(share: float, uncertainty: float) -> None:
    found = diagnose(case_of(loop()), [fixed("host.gc", share, uncertainty=uncertainty)])
    for finding in found.findings:
        assert finding.gain is not None
        assert 1 <= finding.gain.floor <= finding.gain.expected <= finding.gain.ceiling
        assert finding.gain.floor >= 1 / (1 - LEAST_SHARE) - 1e-4


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


def test_what_is_large_but_hidden_is_told_as_such() -> None:
    rule = fixed("host.gc", 0.0, if_hidden="large, yet hidden: leave it")
    [found] = diagnose(case_of(loop()), [rule]).findings
    assert (found.severity, found.title, found.remedy) == ("info", "Large, yet hidden: leave it", None)


def test_a_general_cause_that_adds_nothing_to_a_specific_one_is_rejected_with_the_reason() -> None:
    specific = fixed("host.gc", 0.5, rivals=("host.sync",))
    found = diagnose(case_of(loop()), [specific, fixed("host.sync", 0.5, tier=1)])
    assert [finding.id for finding in found.findings] == ["host.gc"]
    [rejected] = found.findings[0].rejected
    assert rejected.id == "host.sync"
    assert "nothing more once this is removed" in rejected.because


def test_a_rule_without_its_signals_abstains_and_names_them() -> None:
    found = diagnosed(loop())
    missing = [(entry.id, entry.missing_signals) for entry in found.abstained]
    assert ("communication.straggler", ["traces of several ranks"]) in missing
    assert any("operator shapes" in signals for cause, signals in missing if cause == "compute.unfused-attention")


def test_a_rule_that_fails_is_named_and_the_others_are_asked() -> None:
    def broken(_case: Case) -> Iterator[Candidate]:
        raise ZeroDivisionError("on purpose")

    found = diagnose(
        case_of(loop()), [Rule(causes()["host.gil"], (Finder(broken, ("trace",)),)), fixed("host.gc", 0.5)]
    )
    assert [finding.id for finding in found.findings] == ["host.gc"]
    assert found.failures == ["the rule for host.gil failed (ZeroDivisionError: on purpose)"]


def test_a_rule_that_proposes_another_cause_is_named_and_not_believed() -> None:
    foreign = Rule(causes()["host.gil"], fixed("host.gc", 0.5).finders)
    found = diagnose(case_of(loop()), [foreign])
    assert found.findings == []
    assert "it proposed host.gc" in found.failures[0]


@pytest.mark.parametrize(
    ("needs", "missing"),
    [
        ((("samples",), ("trace",)), None),  # one way to see it is enough
        ((("samples", "peak"), ("shapes",)), ["operator shapes"]),  # the way that lacks least is asked for
        ((("samples", "no_device"),), None),  # it speaks of jobs without an accelerator alone
    ],
)
def test_a_cause_is_abstained_from_only_if_nothing_that_could_see_it_ran(
    needs: tuple[tuple[Any, ...], ...], missing: list[str] | None
) -> None:
    finders = tuple(Finder(lambda _case: [], signals) for signals in needs)
    found = diagnose(case_of(loop()), [Rule(causes()["host.gil"], finders)])
    assert [one.missing_signals for one in found.abstained] == ([] if missing is None else [missing])


@pytest.mark.parametrize(
    ("saved", "severity"), [(0.0, "info"), (0.02, "info"), (0.04, "minor"), (0.1, "major"), (0.2, "critical")]
)
def test_severity_follows_the_speed_gained(saved: float, severity: str) -> None:
    assert severity_of(saved) == severity


def test_the_same_input_gives_the_same_bytes() -> None:
    recorded = loop(fetch_ns=700_000, python_ns=400_000).load()
    first, second = (msgspec.json.encode(whystall.analyze(recorded)) for _ in range(2))
    assert first == second


VERDICTS = {
    "deepseek-v3-dualpipe-h800.json": None,
    "recsys-2rank-v100.json.gz": "host.launch-bound",
    "resnet50-workers0-v100.json.gz": "input.synchronous-loader",
    "tp-decode-b200.json.gz": "host.launch-bound",
    "bert-small-h100.json.gz": "host.launch-bound",
    "sglang-decode-mi300x.json.gz": None,
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts_on_recorded_traces_whose_cause_is_known(name: str) -> None:
    if not (SHARED / name).exists():
        pytest.skip("the shared traces are not here")
    report = whystall.analyze(SHARED / name)
    assert report.verdict.cause == VERDICTS[name]
    named = {finding.id: finding for finding in report.findings}
    if name.startswith("deepseek"):
        assert report.verdict.summary.startswith("Healthy")
        assert "leave it" in named["communication.exposed"].title
        assert named["communication.exposed"].severity == "info"
    if name.startswith("recsys"):
        assert "communication.small-messages" in named
        assert named["communication.small-messages"].scope.steps == ["ProfilerStep#6"]
    if name.startswith("sglang"):
        assert "mostly empty" in report.verdict.summary


def test_a_general_cause_below_a_specific_one_says_what_it_ranks_by() -> None:
    """Of a half that is left, what saves seven tenths of the whole still saves two fifths."""
    first, second = diagnose(case_of(loop()), [fixed("host.gc", 0.5), fixed("host.sync", 0.7, tier=1)]).findings
    assert (first.id, second.id) == ("host.gc", "host.sync")
    [told] = [each for each in second.evidence if "by which it ranks" in each.what]
    assert told.unit == "share"
    assert float(told.value) == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize(("capability", "rate"), [((-7, 0), 12e9), ((7, 0), 12e9), ((9, 0), 50e9)])
def test_a_damaged_compute_capability_is_taken_for_an_old_device(capability: tuple[int, int], rate: float) -> None:
    devices = (SimpleNamespace(compute_capability=capability),)
    rank: Any = SimpleNamespace(trace=SimpleNamespace(metadata=SimpleNamespace(devices=devices)))
    assert pinned_bytes_per_s(rank) == rate


def test_a_plan_counts_a_cause_for_what_samples_found_it_to_be_worth() -> None:
    """Its replay saves four fifths, of which samples found a quarter: after a half it adds a quarter of three tenths."""
    rules = [fixed("host.gc", 0.5), fixed("host.sync", 0.8, saved=(0.2, 0.2, 0.2))]
    plan = diagnose(case_of(loop()), rules).plan
    assert plan is not None
    assert plan.causes == ["host.gc", "host.sync"]
    assert plan.speedups == pytest.approx([1 / (1 - 0.5), 1 / (1 - 0.5 - 0.3 / 4)], rel=0.02)


def test_a_trace_of_which_nothing_can_be_replayed_is_not_asked_for_causes() -> None:
    recorded = loop().load()
    case = Case(ranks=(RankCase(0, recorded, analyze_trace(recorded)),), graph=None)
    diagnosis = diagnose(case, RULES)
    assert not diagnosis.findings
    assert not diagnosis.failures
    assert diagnosis.abstained


def test_calls_that_take_no_time_leave_no_host_to_replay_and_are_no_failure() -> None:
    built = trace()
    for _ in range(5):
        built.operator("aten::mm", at=0, lasts=0)
        built.launch("gemm", at=0, call_lasts=0, runs_at=0, lasts=1_500)
    assert not diagnosed(built).failures


def cpu_loop(*, python_ns: int, function: str | None = None, operators_ns: int = 1_000_000) -> TraceBuilder:
    """Steps of a job without an accelerator: an operator, then Python."""
    built = trace()
    for number in range(5):
        begin = number * (operators_ns + python_ns)
        built.step(number, at=begin, lasts=operators_ns + python_ns)
        built.operator("aten::mm", at=begin, lasts=operators_ns)
        if function:
            built.python(function, at=begin + operators_ns, lasts=python_ns)
    return built


@pytest.mark.parametrize("function", [None, "train.py(7): heavy"])
def test_heavy_python_of_a_job_without_an_accelerator_is_named(function: str | None) -> None:
    report = whystall.analyze(cpu_loop(python_ns=4_000_000, function=function).load())
    assert report.verdict.cause == "host.python"
    [found] = [one for one in report.findings if one.severity != "info"]
    assert found.gain is not None
    assert found.gain.floor <= 5.0 <= found.gain.ceiling
    assert [place.symbol for place in found.code] == (["heavy"] if function else [])
    assert found.could_be == ([] if function else ["host.gc", "episodic.logging"])


def test_short_python_of_a_job_without_an_accelerator_is_no_cause() -> None:
    report = whystall.analyze(cpu_loop(python_ns=50_000).load())
    assert report.verdict.summary.startswith("Healthy")


def test_the_optimizer_is_not_counted_as_python_of_a_job_without_an_accelerator() -> None:
    built = cpu_loop(python_ns=4_000_000)
    for number in range(5):
        built.annotation("Optimizer.step#SGD.step", at=number * 5_000_000 + 1_000_000, lasts=4_000_000)
    assert "host.python" not in {one.id for one in diagnosed(built).findings}


def test_samples_of_the_whole_run_go_before_python_of_a_trace() -> None:
    case = case_of(cpu_loop(python_ns=4_000_000))
    sampled: Any = SimpleNamespace(rank=0, measured=20)
    assert list(python.in_trace_of_a_cpu(case))
    assert not list(python.in_trace_of_a_cpu(replace(case, runs=(sampled,))))


def test_a_large_loss_without_a_cause_is_no_health() -> None:
    """Launches without device events: what of the host's time was hidden cannot be told."""
    built = cpu_loop(python_ns=4_000_000)
    for number in range(5):
        built.runtime("cudaLaunchKernel", at=number * 5_000_000 + 500_000, lasts=5_000)
    report = whystall.analyze(built.load())
    assert report.verdict.cause is None
    assert report.verdict.summary.startswith("No cause was named for the largest loss; not judged: host.")
    assert "host.python" in report.verdict.summary
    assert "for want of device events" in report.verdict.summary
    assert "the host running Python between operators (80.0 %)" in report.verdict.summary


def test_the_gain_of_a_single_step_is_of_that_step() -> None:
    """From its mark to the end of what it launched, whatever else was recorded."""
    built = loop(fetch_ns=1_000_000, steps=1)
    built.operator("aten::zeros", at=-9_000_000, lasts=10_000)
    case = case_of(built)
    assert case.has_steps
    assert case.step_ns == pytest.approx(2_000_000, rel=0.05)
    found = diagnose(case, RULES).findings[0]
    assert found.gain is not None
    assert (found.id, found.gain.of) == ("input.synchronous-loader", "step")
    assert found.gain.expected == pytest.approx(1.95, abs=0.1)


def test_what_an_earlier_step_left_to_the_device_is_no_part_of_a_single_step() -> None:
    built = trace()
    built.launch("gemm", at=0, call_lasts=5_000, runs_at=10_000, lasts=5_000_000)
    built.step(1, at=100_000, lasts=200_000)
    built.operator("aten::mm", at=110_000, lasts=50_000)
    built.launch("gemm", at=120_000, call_lasts=5_000, runs_at=5_010_001, lasts=1_000_000)
    assert case_of(built).step_ns == 1_000_001


def test_without_steps_gains_are_of_the_recording_and_say_so() -> None:
    built = trace()
    built.operator("aten::mm", at=0, lasts=20_000)
    built.launch("gemm", at=5_000, call_lasts=5_000, runs_at=12_000, lasts=1_000_000)
    built.operator("aten::mm", at=2_900_000_000, lasts=20_000)
    built.launch("gemm", at=2_900_005_000, call_lasts=5_000, runs_at=2_900_012_000, lasts=1_000_000)
    report = whystall.analyze(built.load())
    assert report.noise is None
    found = next(one for one in report.findings if one.id == "host.python")
    assert found.gain is not None
    assert found.gain.of == "recording"
    assert {one.per for one in found.evidence} <= {None, "recording"}
    assert "without it the recording would be" in report.verdict.summary
    assert "of 2.90 s" in report.verdict.summary


def test_a_rival_is_rejected_once_for_what_it_is_worth_where_it_is_worth_most() -> None:
    rules = [fixed("host.gc", 0.5, rivals=("host.python",)), fixed("host.python", 0.001), fixed("host.python", 0.01)]
    rules[2] = fixed("host.python", 0.01, nameless=True)  # another way to know it, which is not merged with the first
    [rejected] = diagnose(case_of(loop()), rules).findings[0].rejected
    assert (rejected.id, rejected.because) == ("host.python", "its removal saves 1.0 % of the step")


def test_a_blocking_copy_counts_as_a_wait() -> None:
    built = trace()
    for number in range(5):
        at = number * 3_000_000
        built.step(number, at=at, lasts=3_000_000)
        built.operator("aten::mm", at=at, lasts=20_000)
        built.launch("gemm", at=at + 5_000, call_lasts=5_000, runs_at=at + 12_000, lasts=1_000_000)
        built.operator("aten::_to_copy", at=at + 25_000, lasts=1_100_000)
        built.launch(
            "Memcpy DtoH (Device -> Pageable)",
            at=at + 30_000,
            call="cudaMemcpyAsync",
            call_lasts=1_090_000,
            runs_at=at + 1_012_000,
            lasts=100_000,
            category="gpu_memcpy",
        )
    case = case_of(built)
    [found] = list(sync.in_trace(case))
    values = {one.what: one.value for one in found.evidence}
    assert values["spent in them"] == pytest.approx(1_077_000, rel=0.02)
    assert values["calls in which the host waits for the device"] == 1
    assert values["called by"] == "aten::_to_copy"


@pytest.mark.parametrize(
    ("busy", "told"), [(0.9, "leave it"), (0.02, "busy 2.0 % of the time, would idle all the same")]
)
def test_what_hides_a_cause_is_said_as_it_is(busy: float, told: str) -> None:
    device = SimpleNamespace(busy_ns=round(busy * 1000), window_ns=1000)
    rank: Any = SimpleNamespace(analysis=SimpleNamespace(devices=[device]))
    assert told in what_is_hidden(rank, "the host waits")


def test_what_is_only_told_has_no_gain_where_nothing_limits_it() -> None:
    case = case_of(loop())
    nothing = np.zeros(len(case.replayed.start), np.int64)
    zero = Change(duration=nothing, delay=nothing)
    rule = fixed("host.gc", 0.0, ceiling=zero, if_hidden="leave it")
    case.__dict__["fidelity"] = SimpleNamespace(share=0.0)
    [found] = diagnose(case, [rule]).findings
    assert found.gain is None
