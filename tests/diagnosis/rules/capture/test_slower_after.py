"""capture.slower-after: steps that stay longer after a window fire it; drift, noise and slow times before do not."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl
import pytest
from tests.diagnosis.cases import case_of, found_in_runs
from tests.diagnosis.jobs import Job

from whystall.analysis.run_results import RunSummary
from whystall.analysis.run_summary import run_summary
from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules.capture import slower_after
from whystall.run_folder.samples import PROFILED, STEP_COLUMNS
from whystall.trace.samples import RunSamples

CAUSE: Final = "capture.slower-after"
US: Final = 10_000


def watched(*stretches: tuple[int, float], scatter: float = 0.01, seed: int = 0) -> RunSummary:
    """A run of stretches of so many steps of so many times 10 ms; recorded ones have a negative count."""
    random = np.random.default_rng(seed)
    counts = np.array([count for count, _ in stretches])
    length = np.repeat([times for _, times in stretches], np.abs(counts))
    duration = US * length * (1 + scatter * random.standard_normal(len(length)))
    flags = np.repeat(np.where(counts < 0, PROFILED, 0), np.abs(counts))
    columns: dict[str, Any] = {name: np.zeros(len(length), np.int64) for name in STEP_COLUMNS}
    columns |= {"step": np.arange(len(length)), "duration_us": duration.astype(np.int64), "flags": flags}
    columns |= {"forward_us": columns["duration_us"], "cpu_us": columns["duration_us"]}
    machine = pl.DataFrame(schema={"at_unix_ns": pl.Int64})
    found = run_summary(RunSamples("s", 0, 0, pl.DataFrame(columns), machine, 0))
    assert found is not None
    return found


def fired(run: RunSummary) -> Finding | None:
    return found_in_runs(run).get(CAUSE)


def test_steps_that_stay_longer_after_a_window() -> None:
    """Of 400 measured steps all but a hundred would take 10 ms instead of 11.5."""
    finding = fired(watched((100, 1.0), (-3, 1.8), (300, 1.15)))
    assert finding is not None
    assert finding.gain is not None
    truth = (95 + 300 * 1.15) / 395
    assert finding.gain.floor <= truth <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(truth, rel=0.01)
    assert finding.remedy is not None
    assert finding.remedy.patch is None  # nothing says that a device was recorded


@pytest.mark.parametrize(
    "stretches",
    [
        pytest.param([(100, 1.0), (-3, 1.8), (300, 1.0)], id="as long as before"),
        pytest.param([(100, 1.0), (-3, 1.8), (300, 1.03)], id="hardly longer"),
        pytest.param([(100, 1.0), (-3, 1.8), (60, 1.2), (240, 1.0)], id="it passes"),
        pytest.param([(97, 1.0), (3, 1.3), (-3, 1.8), (300, 1.15)], id="slow before it began"),
        pytest.param([(100, 1.15), (-3, 1.8), (300, 1.0)], id="faster"),
        pytest.param(
            [*((20, 1 + 0.05 * at) for at in range(8)), (-3, 2.5), *((20, 1.4 + 0.05 * at) for at in range(8))],
            id="growing all along",
        ),
        pytest.param([(100, 1.0), (-3, 1.8), (150, 1.1), (150, 1.3)], id="it changes elsewhere by more"),
        pytest.param([(105, 0.8), (100, 1.0), (-3, 1.8), (300, 1.15)], id="it changed before by more"),
        pytest.param([(30, 1.0), (-3, 1.8), (30, 1.2)], id="too short a run to know"),
    ],
)
def test_what_is_no_effect_of_a_window(stretches: list[tuple[int, float]]) -> None:
    assert fired(watched(*stretches)) is None


def test_noise_alone_is_no_effect() -> None:
    """Of two hundred steady runs with steps that scatter by a fifth none is said to be slower."""
    runs = [watched((60, 1.0), (-3, 1.5), (400, 1.0), scatter=0.2, seed=seed) for seed in range(200)]
    assert not [seed for seed, run in enumerate(runs) if list(slower_after.in_samples(Case(runs=(run,))))]


@pytest.mark.parametrize(("api", "patch"), [("cuda", True), ("hip", False)])
def test_only_cupti_is_torn_down(api: str, *, patch: bool) -> None:
    job = Job(api=api)
    for _ in job.steps(5):
        job.operator("aten::mm", "gemm", 100_000)
        job.wait()
    run = watched((100, 1.0), (-3, 1.8), (300, 1.15))
    (one,) = slower_after.in_samples(case_of(job.built, runs=[run]))
    assert (one.remedy is None) == patch  # the entry's, which names CUPTI
