"""What a finding says: its evidence and remedy, what it was weighed against, and what is hidden."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.conftest import RealTraces
from tests.diagnosis.cases import case_of, diagnosed, fixed, loop, of_framework
from tests.diagnosis.jobs import Job

import whystall
from whystall._api import demo_recording
from whystall.analysis.steadiness import mean_step
from whystall.diagnosis.candidate import Code
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.detectors.host_calls import hidden as what_is_hidden
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import CodeLocation
from whystall.replay.graph import Change

SHARED = Path(__file__).parents[3] / "shared" / "traces"


def test_every_finding_has_what_a_finding_owes() -> None:
    for finding in diagnosed(loop(fetch_ns=700_000, python_ns=400_000)).findings:
        assert finding.id in causes()
        assert finding.evidence
        assert 0 < finding.confidence <= 1
        if finding.severity != "info":
            assert finding.remedy is not None
            assert finding.verify is not None
            assert "whystall verify" in finding.verify.command


def test_a_job_of_another_framework_is_not_told_what_to_do_in_pytorchs_terms() -> None:
    rule, case = fixed("compute.fusible", 0.3), case_of(loop())
    [ours], [foreign] = (diagnose(one, [rule]).findings for one in (case, of_framework("xla", case)))
    assert ours.remedy is not None
    assert foreign.remedy is not None
    assert "torch" in f"{ours.remedy.text} {ours.remedy.patch}"
    assert "torch" not in foreign.remedy.text
    assert (foreign.remedy.patch, foreign.remedy.risk) == (None, None)
    assert (foreign.id, foreign.gain, foreign.evidence) == (ours.id, ours.gain, ours.evidence)


def test_what_is_large_but_hidden_is_told_as_such() -> None:
    rule = fixed("host.gc", 0.0, if_hidden="large, yet hidden: leave it")
    [found] = diagnose(case_of(loop()), [rule]).findings
    assert (found.severity, found.title, found.remedy) == ("info", "Large, yet hidden: leave it", None)


def test_a_general_cause_that_adds_nothing_to_a_specific_one_is_rejected_with_the_reason() -> None:
    specific = fixed("host.gc", 0.5, rivals=("host.sync",))
    found = diagnose(case_of(loop()), [specific, fixed("host.sync", 0.2, tier=1)])
    assert [finding.id for finding in found.findings] == ["host.gc"]
    [rejected] = found.findings[0].rejected
    assert rejected.id == "host.sync"
    assert "nothing more once this is removed" in rejected.because


def test_one_that_saves_as_much_alone_is_another_repair_of_the_same_loss() -> None:
    specific = fixed("host.gc", 0.5, rivals=("host.sync",))
    found = diagnose(case_of(loop()), [specific, fixed("host.sync", 0.5, tier=1)])
    [finding] = found.findings
    assert finding.rejected == []
    [other] = finding.instead
    assert other.id == "host.sync"
    assert other.gain.expected == pytest.approx(2, rel=0.02)


def test_two_ways_to_know_one_cause_are_no_rivals() -> None:
    found = diagnose(
        case_of(loop()), [fixed("host.gc", 0.5, rivals=("host.gc",)), fixed("host.gc", 0.01, detail="another")]
    )
    assert all(rejected.id != finding.id for finding in found.findings for rejected in finding.rejected)


def test_a_general_cause_below_a_specific_one_says_what_it_ranks_by() -> None:
    """What saves seven tenths saves a fifth of the step more, once a half is saved already."""
    first, second = diagnose(case_of(loop()), [fixed("host.gc", 0.5), fixed("host.sync", 0.7, tier=1)]).findings
    assert (first.id, second.id) == ("host.gc", "host.sync")
    assert first.gain is not None
    assert first.gain.adds is None
    assert second.gain is not None
    assert second.gain.adds == pytest.approx(0.2, abs=0.02)


def test_what_a_general_cause_gains_once_others_are_gone_does_not_lift_it_above_them() -> None:
    """Work of 4 and 3.7 ms side by side: a specific cause saves 0.3 ms alone, a general one 0.15, and then 0.5 more."""
    job = Job()
    for _ in job.steps(8):
        job.launch("gemm", 4_000_000, stream=7)
        job.launch("gemm", 3_700_000, stream=9)
        job.wait()
    case = case_of(job.built)
    lasts = case.replayed.duration

    def shorter(long: int, short: int) -> Change:
        return Change(duration=np.where(lasts == 4_000_000, long, np.where(lasts == 3_700_000, short, lasts)))

    specific = fixed("host.gc", 0.0, removal=shorter(3_200_000, 3_700_000), uncertainty=0.0)
    general = fixed("host.sync", 0.0, removal=shorter(3_850_000, 2_000_000), uncertainty=0.0, tier=1)
    first, second = diagnose(case, [general, specific]).findings
    assert (first.id, second.id) == ("host.gc", "host.sync")


@pytest.mark.parametrize(("step_ns", "confidence"), [(1_000_000, 0.9), (None, 0.45)])
def test_what_samples_of_the_whole_run_tell_rests_on_no_recording(step_ns: int | None, confidence: float) -> None:
    case = case_of(loop())
    case.__dict__["fidelity"] = SimpleNamespace(share=0.5)
    rule = fixed("host.gc", 0.5, saved=(0.4, 0.5, 0.6), step_ns=step_ns, confidence=0.9)
    [found] = diagnose(case, [rule]).findings
    assert found.confidence == confidence


@pytest.mark.parametrize(("share", "told"), [(0.9, 0.9), (0.6, 0.6), (0.4, 1.0)])
def test_at_the_least_the_line_that_explains_most_of_a_cause_is_mended(share: float, told: float) -> None:
    case = case_of(loop())
    code = Code((CodeLocation(file="train.py", line=3, symbol="reward", share=share),), share)
    [found] = diagnose(case, [fixed("host.gc", 0.5, code=code, uncertainty=0.0)]).findings
    assert found.gain is not None
    floor = 1 - 1 / found.gain.floor
    assert floor == pytest.approx(told * (1 - 1 / found.gain.expected) - case.noise, abs=0.02)


def test_a_rival_is_rejected_once_for_what_it_is_worth_where_it_is_worth_most() -> None:
    rules = [fixed("host.gc", 0.5, rivals=("host.python",)), fixed("host.python", 0.001), fixed("host.python", 0.01)]
    rules[2] = fixed("host.python", 0.01, nameless=True)  # another way to know it, which is not merged with the first
    [rejected] = diagnose(case_of(loop()), rules).findings[0].rejected
    assert (rejected.id, rejected.because) == ("host.python", "its removal saves 1.0 % of the step")


@pytest.mark.parametrize(
    ("busy", "told"), [(0.9, "leave it"), (0.02, "busy 2.0 % of the time, would idle all the same")]
)
def test_what_hides_a_cause_is_said_as_it_is(busy: float, told: str) -> None:
    device = SimpleNamespace(busy_ns=round(busy * 1000), window_ns=1000, steps=())
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


def test_the_length_of_a_step_is_one_number() -> None:
    report = whystall.analyze(demo_recording(), cache=False)
    mean = mean_step(report.devices[0].steps)
    assert mean is not None
    gains = [finding.gain for finding in report.findings if finding.gain is not None]
    assert gains
    assert {gain.step_ns for gain in gains if gain.step_ns is not None} == {mean.window_ns} == {report.verdict.step_ns}


@pytest.mark.real_traces
def test_a_slow_device_behind_a_slow_host_is_told_with_what_hides_it(real_traces: RealTraces) -> None:
    """Two thirds of the kernels' time is in single precision on a V100, but the host needs 118 of a step's 121 ms."""
    report = whystall.analyze(real_traces.path("resnet50-workers4-v100.json.gz"), cache=False)
    [hidden] = [one for one in report.findings if one.id == "compute.low-tensor-core"]
    assert hidden.severity == "info"
    assert "once the host launches faster (host.launch-bound), removing this saves" in hidden.title
