"""Work done again or for nothing, in recordings of torch's own beside the tensors that its operators were given."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import numpy as np

import whystall
from whystall.diagnosis.detectors.wasted_work import wasted_calls, wasted_work
from whystall.diagnosis.rank_case import RankCase
from whystall.run_folder.layout import values_name
from whystall.trace.readers.execution_trace import read_execution_trace

RECORDINGS: Final = Path(__file__).parents[2] / "recordings" / "values"
WITHIN: Final = "work done again within the same step"
INVARIANT: Final = "work that gives the same in each step"
DEAD: Final = "work whose results nothing reads"


def kinds(run: Path) -> dict[str, set[str]]:
    """The operators that are shown for each kind of work."""
    report = whystall.analyze(run, cache=False)
    assert not report.source.missing_signals or "operators" not in report.source.missing_signals
    return {
        line.what.removeprefix("in recorded steps: "): {event.name for event in line.events}
        for one in report.findings
        if one.id == "compute.redundant-work"
        for line in one.evidence
    }


def test_each_kind_is_found() -> None:
    product = {"aten::mm"}
    assert kinds(RECORDINGS / "wasteful") == {WITHIN: product, INVARIANT: product, DEAD: {*product, "aten::exp"}}


def test_a_program_without_has_none() -> None:
    assert kinds(RECORDINGS / "frugal") == {}


def test_a_job_that_throws_all_answers_away_is_a_benchmark() -> None:
    assert kinds(RECORDINGS / "measured") == {}


def test_nothing_is_said_beside_work_that_no_operator_shows() -> None:
    execution = read_execution_trace(RECORDINGS / "wasteful" / values_name(0))
    unseen = SimpleNamespace(on_device=True, dataflow=SimpleNamespace(blind=np.array([3])))
    calls = wasted_calls(execution)
    assert calls is not None
    assert wasted_work(cast("RankCase", unseen), calls) is None


def test_damaged_values_are_named_and_say_nothing(tmp_path: Path) -> None:
    run = shutil.copytree(RECORDINGS / "wasteful", tmp_path / "run")
    (run / values_name(0)).write_bytes(b"nothing")
    assert kinds(run) == {}
    assert any("rank0.values.json.gz" in one for one in whystall.analyze(run, cache=False).source.warnings)
