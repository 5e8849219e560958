"""What slow steps of a job with an accelerator lost has the cause that the run's own clocks name."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in, line, loader, run
from tests.diagnosis.jobs import Job, is_worth

from whystall.analysis.run_results import RunSummary, SampledLine, SlowStep
from whystall.diagnosis.run_facts import RunFacts

STEP_NS: Final = 10_000_000
STEPS: Final = 100
SLOW: Final = 4
LOST_NS: Final = 200_000_000
"""What each slow step took beyond the others: 800 of 1,800 ms."""


def training(busy_ns: int = STEP_NS // 2) -> Job:
    """Eight steps in which nothing slow happens."""
    job = Job()
    for _ in job.steps(8):
        job.operator("aten::mm", "gemm", busy_ns)
        job.wait()
        job.python(max(STEP_NS - busy_ns, 0))
    return job


def slow_run(lost: dict[str, int], **more: Any) -> RunSummary:
    total = STEPS * STEP_NS + SLOW * LOST_NS
    step = SlowStep(step=20, duration_ns=STEP_NS + LOST_NS, excess_ns=LOST_NS, lost_ns=lost)
    even = {"p10_ns": STEP_NS, "median_ns": STEP_NS, "p90_ns": STEP_NS, "p99_ns": STEP_NS + LOST_NS}
    return run(
        total_ns=total,
        max_ns=STEP_NS + LOST_NS,
        slow_ns=SLOW * LOST_NS,
        slow=[step] * SLOW,
        slow_steps=SLOW,
        slow_lost_ns={part: SLOW * ns for part, ns in lost.items()},
        durations_ns=([STEP_NS] * 24 + [STEP_NS + LOST_NS]) * 4,
        **{**even, **more},
    )


@pytest.mark.parametrize(
    ("cause", "lost", "share"),
    [
        pytest.param("episodic.checkpoint", {"save": LOST_NS}, 1.0, id="all of it in torch.save"),
        pytest.param(
            "episodic.checkpoint", {"save": LOST_NS * 3 // 5, "other": LOST_NS * 2 // 5}, 1.0, id="copied before"
        ),
        pytest.param("host.gc", {"gc": LOST_NS}, 1.0, id="a collection"),
        pytest.param("host.gc", {"gc": LOST_NS // 2, "other": LOST_NS // 2}, 0.5, id="a collection and something"),
        pytest.param("input.worker-restart", {"input": LOST_NS}, 1.0, id="workers that start"),
    ],
)
def test_the_part_that_was_slow_names_the_cause(cause: str, lost: dict[str, int], share: float) -> None:
    facts = RunFacts(**loader(4, persistent=False))
    finding = found_in(training().built, facts=facts, runs=[slow_run(lost)])[cause]
    total = STEPS * STEP_NS + SLOW * LOST_NS
    is_worth(finding, total / (total - SLOW * LOST_NS * share))


def test_workers_that_are_kept_do_not_start_again() -> None:
    facts = RunFacts(**loader(4, persistent=True))
    found = found_in(training().built, facts=facts, runs=[slow_run({"input": LOST_NS})])
    assert "input.heavy-tail" in found
    assert "input.worker-restart" not in found


def test_lines_name_what_was_slow_between_the_parts() -> None:
    places = [line(0.4, "accuracy = evaluate(model)", part="evaluation"), line(0.5, part="backward")]
    found = found_in(training().built, runs=[slow_run({"other": LOST_NS}, places=places)])
    is_worth(found["episodic.evaluation"], 1 / (1 - 0.4))


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([line(0.08, "logger.info(loss)", leaf="logging:info")], id="logs in each step"),
        pytest.param([line(0.05, "torch.save(state, path)", part="save")], id="saves beside"),
        pytest.param([line(0.05, "evaluate(model)", part="evaluation")], id="evaluates beside"),
    ],
)
@pytest.mark.parametrize("part", ["backward", "other"])
def test_what_each_step_does_is_not_what_slow_ones_lost(places: list[SampledLine], part: str) -> None:
    """Sequences of another length, or something else between the parts that no line was found at."""
    shares = {"other": 0.1 + (0.44 if part == "other" else 0.0)}
    found = found_in(training().built, runs=[slow_run({part: LOST_NS}, places=places, shares=shares)])
    assert not {cause for cause in found if cause.startswith("episodic.")}


def test_a_host_that_runs_ahead_and_then_waits_has_lost_nothing() -> None:
    """The device works for 18 ms a step; the host calls that in 10 ms, and waits for the rest where it saves."""
    mean = STEP_NS + SLOW * LOST_NS // STEPS
    assert "episodic.checkpoint" not in found_in(training(busy_ns=mean).built, runs=[slow_run({"save": LOST_NS})])
