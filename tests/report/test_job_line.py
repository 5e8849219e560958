"""The line of the whole job: a part that is in several phases stands there once, with all of its time."""

from __future__ import annotations

from whystall.analysis.whole_job import JobPart, WholeJob
from whystall.report.overview import job_line


def test_a_part_of_several_phases_stands_once() -> None:
    parts = [
        JobPart(part="evaluation", phase="start", ns=20),
        JobPart(part="steps", phase="steps", ns=50),
        JobPart(part="evaluation", phase="steps", ns=10),
        JobPart(part="exit", phase="end", ns=20),
    ]
    line = job_line(WholeJob(rank=0, wall_ns=100, parts=parts, first_step_ns=20))
    assert line.endswith(": steps 50.0 %, evaluation 30.0 %, exit 20.0 %")
