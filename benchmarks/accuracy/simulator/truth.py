"""The truth of a case: the generator is run again without each cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.accuracy.simulator.case import Case, Truth
from benchmarks.accuracy.simulator.simulate import Run, simulate


def truth_of(case: Case, run: Run | None = None) -> Truth:
    """What curing each cause of a case gains; ``run`` is the case's own run, where it is at hand."""
    cured = {cause: simulate(job).step_ns() for cause, job in case.cured.items()}
    together = simulate(case.all_cured).step_ns() if case.all_cured else None
    return Truth(case, (run or simulate(case.job)).step_ns(), cured, together)


def write_case(case: Case, folder: Path) -> dict[str, Any]:
    """Write a case's traces and its truth; returns the truth."""
    run = simulate(case.job)
    run.write(folder)
    truth = truth_of(case, run).as_json()
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n", "utf-8")
    return truth
