"""A few jobs of the benchmark, end to end: the command line names what is wrong, and nothing where nothing is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.accuracy.expectation import from_folder
from benchmarks.accuracy.score import mark
from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.registry import all_cases
from benchmarks.accuracy.simulator.truth import write_case
from benchmarks.accuracy.verdicts import analyze
from tests.diagnosis.test_bounds import beyond, computed_share, judged_end_to_end

from whystall.report.schema import decode


@pytest.mark.parametrize("case", [case for case in all_cases() if judged_end_to_end(case)], ids=lambda case: case.name)
def test_the_verdict_is_right(case: Case, tmp_path: Path) -> None:
    write_case(case, tmp_path)

    said = analyze([tmp_path])
    given = mark(from_folder(tmp_path), said)

    assert given.top1, given.said_ids
    assert given.false_alarms == ()
    assert given.broken == ()
    assert all(gain.error < 0.2 for gain in given.gains)
    traces = [path for path in tmp_path.iterdir() if path.name != "truth.json"]
    assert not beyond(decode(json.dumps(said.report).encode()), min(map(computed_share, traces)))
