"""A few jobs of the benchmark, end to end: the command line names what is wrong, and nothing where nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.accuracy.expectation import from_folder
from benchmarks.accuracy.score import mark
from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.registry import all_cases
from benchmarks.accuracy.simulator.truth import write_case
from benchmarks.accuracy.verdicts import analyze

CASES = [
    case for case in all_cases() if case.quick and case.job.parallel.ranks <= 2 and not case.name.startswith("pair-")
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_verdict_is_right(case: Case, tmp_path: Path) -> None:
    write_case(case, tmp_path)

    given = mark(from_folder(tmp_path), analyze([tmp_path]))

    assert given.top1, given.said_ids
    assert given.false_alarms == ()
    assert given.broken == ()
    assert all(gain.error < 0.2 for gain in given.gains)
