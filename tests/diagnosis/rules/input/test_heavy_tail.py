"""input.heavy-tail: rare long fetches of kept workers fire it; frequent ones, and those of new workers,
are other causes.
"""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import STEP_NS, found_in_runs, loader, run

from whystall.analysis.run_results import RunSummary, SlowStep


def fetching(*, every: int, lost: float = 2.0, share: float = 0.2) -> RunSummary:
    """A run of a hundred steps; in one of so many the fetch takes some steps' time, and all of them make the share."""
    spikes = [
        SlowStep(
            step=step,
            duration_ns=round((1 + lost) * STEP_NS),
            excess_ns=round(lost * STEP_NS),
            lost_ns={"input": round(lost * STEP_NS)},
        )
        for step in range(0, 100, every)
    ]
    total = round(len(spikes) * lost * STEP_NS / share)
    return run(shares={"input": share}, slow=spikes, total_ns=total, workers=2, worker_cpu_share=0.5)


@pytest.mark.parametrize("every", [6, 10, 50])
def test_rare_long_fetches_are_worth_half_at_least_and_all_at_most(every: int) -> None:
    """Later batches may pass, but the worker with the long sample is held up all the same."""
    found = found_in_runs(fetching(every=every), **loader(2))
    assert next(iter(found)) == "input.heavy-tail"
    gain = found["input.heavy-tail"].gain
    assert gain is not None
    assert gain.floor == pytest.approx(1 / (1 - 0.1), rel=0.03)
    assert gain.expected == pytest.approx(1 / (1 - 0.2), rel=0.03)
    assert gain.ceiling >= 1 / (1 - 0.2)


def test_frequent_long_fetches_are_those_of_slow_workers() -> None:
    found = found_in_runs(fetching(every=2), **loader(2))
    assert "input.heavy-tail" not in found
    assert "input.too-few-workers" in found


def test_long_fetches_of_workers_that_are_not_kept_are_their_start() -> None:
    found = found_in_runs(fetching(every=10), **loader(2, persistent=False))
    assert "input.heavy-tail" not in found
    assert "input.worker-restart" in found


def test_long_fetches_that_cost_little_are_none() -> None:
    assert "input.heavy-tail" not in found_in_runs(fetching(every=50, share=0.015), **loader(2))


def test_even_fetches_have_no_tail() -> None:
    assert found_in_runs(run(workers=2, worker_cpu_share=0.5), **loader(2)) == {}
