"""The verdict on a whole job: a cause outside of steps, else the line that takes a large share, else the steps'."""

from __future__ import annotations

from typing import Final

import pytest

from whystall.analysis.whole_job import JobPart, WholeJob
from whystall.diagnosis.finding import Diagnosis, Gain, Verdict
from whystall.diagnosis.job_verdict import of_whole_job
from whystall.run_folder.job_times import JobPlace

S: Final = 1_000_000_000
NONE: Final = Verdict(summary="Nothing was found.", basis="The CPU computes.", cause=None, gain=None, confidence=0.9)
PLACE: Final = JobPlace("eval.py", 30, "accuracy", "out = model(x)", "torch:linear", 12 * S)


def job(before: list[JobPlace], after: list[JobPlace]) -> WholeJob:
    parts = [
        JobPart(part="set-up", ns=10 * S),
        JobPart(part="steps", ns=10 * S, phase="steps"),
        JobPart(part="tail", ns=20 * S, phase="end"),
    ]
    return WholeJob(rank=0, wall_ns=40 * S, parts=parts, first_step_ns=10 * S, before_steps=before, after_steps=after)


def diagnosis() -> Diagnosis:
    return Diagnosis(findings=[], abstained=[])


@pytest.mark.parametrize("after", [True, False])
def test_a_line_that_takes_a_quarter_of_the_job_comes_first(after: bool) -> None:
    told, _ = of_whole_job(job([] if after else [PLACE], [PLACE] if after else []), NONE, diagnosis())
    where = "after the last step" if after else "before the first step ends"
    assert told.summary == f"One line takes 30 % of the job {where}: eval.py:30 out = model(x) (12.0 s of 40.0 s)."
    assert told.basis == "Nothing was found. The CPU computes."


def test_looks_at_one_line_count_together() -> None:
    half = JobPlace("eval.py", 30, "accuracy", "out = model(x)", "torch:relu", 6 * S)
    told, _ = of_whole_job(
        job([], [half, JobPlace("eval.py", 30, "accuracy", "out = model(x)", "torch:mm", 6 * S)]), NONE, diagnosis()
    )
    assert told.summary.startswith("One line takes 30 % of the job")
    told, _ = of_whole_job(job([], [half]), NONE, diagnosis())
    assert told == NONE


def test_imports_and_verdicts_with_a_cause_stay_as_they_are() -> None:
    line = JobPlace("train.py", 3, "<module>", "import pandas", "pandas:x", 12 * S)
    assert of_whole_job(job([line], []), NONE, diagnosis())[0] == NONE
    gain = Gain(floor=1.1, expected=1.2, ceiling=1.3, method="replay", step_ns=S)
    named = Verdict(summary="The host waits.", cause="host.sync", gain=gain, confidence=0.9)
    assert of_whole_job(job([], [PLACE]), named, diagnosis())[0] == named
