"""Identical code is not called different: A/A comparisons of simulated runs, and what episodes are judged by."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from benchmarks.same_twice import MODELS, Draw, Simulated, caught, simulated_rates, stalling, summary_of, white
from tests.diagnosis.cases import case_of, fixed, loop
from tests.findings import bare_finding

from whystall.cli.thresholds import parse
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.comparison import compare_reports
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding, Gain
from whystall.diagnosis.run_facts import RunFacts
from whystall.diagnosis.verdict import run_verdict

NAMES = ("base", "candidate")


@pytest.mark.parametrize("draw", MODELS)
def test_at_most_five_in_a_hundred_pairs_of_the_same_are_called_different(draw: Draw) -> None:
    rates = simulated_rates(draw, 100)
    told = (rates.compared, rates.by_mean, rates.failed_on, rates.proven, rates.proven_by_mean)
    assert (rates.pairs, rates.proofs) == (100, 100)
    assert max(told) <= 5, told


@pytest.mark.parametrize("draw", [white, stalling])
def test_eight_pairs_catch_steps_that_are_three_per_cent_longer(draw: Draw) -> None:
    assert caught(draw, 1.03, 40) >= 0.95


def steps(seed: int, *, every: int = 0, stall: float = 0.0, slower: float = 1.0) -> np.ndarray:
    """Steps that differ by 2 %, of which each so manieth stalls for so many steps."""
    found = np.random.default_rng(seed).lognormal(0, 0.02, 400) * slower
    if every:
        found[::every] += stall
    return found


def finding(cause: str) -> Finding:
    return bare_finding(cause, severity="critical", gain=Gain(floor=1.3, expected=1.5, ceiling=1.7, method=""))


def test_a_remedy_of_what_happens_now_and_then_is_seen_by_the_mean_step() -> None:
    """A checkpoint of eight steps' length every tenth step; without it the mean step is 1.8 times as short."""
    base = Simulated([summary_of(steps(1, every=10, stall=8.0))], findings=[finding("episodic.checkpoint")])
    found = compare_reports(base, Simulated([summary_of(steps(2))]), NAMES)
    assert found.statistic == "mean"
    assert found.speedup == pytest.approx(1.8, rel=0.01)
    assert found.significant
    assert found.median is not None
    assert found.median.low < 1 < found.median.high
    assert "by the mean" in found.summary


def test_without_a_cause_that_happens_now_and_then_the_median_decides_and_the_mean_is_told() -> None:
    base, candidate = (Simulated([summary_of(one)]) for one in (steps(1, every=10, stall=8.0), steps(2)))
    found = compare_reports(base, candidate, NAMES)
    assert (found.statistic, found.significant) == ("median", False)
    unknown, told = found.warnings
    assert unknown.startswith("not known of both")
    # The first five steps are not measured: 39 stalls of eight steps remain in 395.
    assert f"the mean step, which counts what happens now and then, is {1 + 8 * 39 / 395:.2f} times as fast" in told


def test_one_run_of_each_says_that_it_cannot_tell_and_further_pairs_can() -> None:
    pairs = [
        (Simulated([summary_of(steps(2 * at))]), Simulated([summary_of(steps(2 * at + 1, slower=0.95))]))
        for at in range(6)
    ]
    alone = compare_reports(*pairs[0], NAMES)
    assert not alone.significant
    assert "give further pairs of runs" in alone.summary
    together = compare_reports(*pairs[0], NAMES, pairs[1:])
    assert together.significant
    assert together.speedup == pytest.approx(1 / 0.95, rel=0.005)
    assert (together.pairs, together.base.runs) == (6, 6)
    assert "--again" not in together.summary
    assert parse("step<-3%").crossed(together)
    assert not parse("step<-3%").crossed(alone)


def test_runs_beside_other_programs_say_less_and_the_comparison_says_so() -> None:
    """Half as long a step is a change on a quiet machine, and none where others took a core in one of the runs."""
    slow, fast = (summary_of(steps(seed, slower=slower)) for seed, slower in ((1, 1.5), (2, 1.0)))
    assert compare_reports(Simulated([slow]), Simulated([fast]), NAMES).significant
    busy = msgspec.structs.replace(slow, other_cores=1.3)
    found = compare_reports(Simulated([busy]), Simulated([fast]), NAMES)
    assert not found.significant
    assert "other programs used 1.3 cores of the machine beside the base" in found.warnings


def test_a_long_run_is_compared_by_all_of_its_steps_and_not_by_its_spikes() -> None:
    """Of a run of 40,000 steps the report keeps 400, the longest of each stretch: not those are compared."""
    quiet, spiky = (np.random.default_rng(seed).lognormal(0, 0.02, 40_000) for seed in (3, 4))
    spiky[::50] *= 1.5  # one in each stretch; the median step is the same
    found = compare_reports(Simulated([summary_of(quiet)]), Simulated([summary_of(spiky)]), NAMES)
    assert found.speedup == pytest.approx(1.0, abs=0.01)


def test_causes_that_happen_now_and_then_are_known_as_such() -> None:
    by_mean = {cause for cause, entry in causes().items() if entry.statistic == "mean"}
    assert {"episodic.checkpoint", "episodic.logging", "episodic.evaluation", "host.gc", "host.recompile"} <= by_mean
    assert {"input.worker-restart", "input.heavy-tail"} <= by_mean
    assert not by_mean & {"host.sync", "host.python", "input.synchronous-loader", "compute.fp32-matmul"}


@pytest.mark.parametrize("kind", [{}, {"saved": (0.15, 0.2, 0.25)}])
def test_what_remedies_brought_before_widens_the_interval_and_takes_no_finding_away(kind: dict[str, object]) -> None:
    rules = [fixed("host.gc", 0.2, **kind)]
    (before,) = diagnose(case_of(loop()), rules).findings
    (after,) = diagnose(case_of(loop(), facts=RunFacts(remedies={"host.gc": (0.0, 1.4)})), rules).findings
    assert (after.id, after.severity) == (before.id, before.severity) == ("host.gc", "critical")
    assert before.gain is not None
    assert after.gain is not None
    assert after.gain.expected == before.gain.expected
    assert after.gain.floor == 1.0
    # 1.4 times what was predicted of the speed-up beyond one
    assert after.gain.ceiling == pytest.approx(max(before.gain.ceiling, 1 + 1.4 * (before.gain.expected - 1)), abs=1e-3)
    assert "0 to 140 %" in [one.value for one in after.evidence]


def test_a_run_of_a_few_steps_has_no_usual_step() -> None:
    """Of a job of six steps whose first took twelve seconds nobody may be told the middle."""
    few = summary_of(np.array([120.0, 1.2, 1.0, 1.1, 1.3, 1.0]))
    told = run_verdict([few]).summary
    assert told.startswith(f"Too short to judge: {few.measured} steps were measured (100 ms to ")
    assert "median" not in told
    assert "in the median" in run_verdict([summary_of(steps(1))]).summary
