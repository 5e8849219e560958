"""input.storage-bound: waits for workers that hardly compute, on every core, fire it; those that compute do not."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import found_in_runs, loader, run
from tests.diagnosis.jobs import is_worth


@pytest.mark.parametrize(
    ("workers", "cpu", "fires"),
    [
        (8, 0.05, True),
        (8, 0.25, True),
        (8, 0.35, False),  # above 0.3 on the CPU (reference: causes.md)
        (8, 0.9, False),
        (2, 0.05, False),  # six more workers would wait for storage at the same time
        (0, 0.0, False),
    ],
)
def test_workers_that_wait_for_reads(workers: int, cpu: float, *, fires: bool) -> None:
    sampled = run(shares={"input": 0.3}, workers=workers, worker_cpu_share=cpu)
    found = found_in_runs(sampled, **loader(workers))
    assert ("input.storage-bound" in found) is fires
    if fires:
        is_worth(found["input.storage-bound"], 1 / (1 - 0.3))


def test_idle_workers_that_nobody_waits_for_are_none() -> None:
    """Workers that are far ahead wait as well: for their batches to be used."""
    assert found_in_runs(run(shares={"input": 0.005}, workers=8, worker_cpu_share=0.05), **loader(8)) == {}


def test_workers_whose_cpu_time_nobody_knows_are_not_judged() -> None:
    sampled = run(shares={"input": 0.3}, workers=8, worker_cpu_share=None)
    assert "input.storage-bound" not in found_in_runs(sampled, **loader(8))


def test_a_loader_of_another_package_is_known_by_what_its_processes_do() -> None:
    sampled = run(shares={"input": 0.3}, workers=8, worker_cpu_share=0.05)
    assert list(found_in_runs(sampled, cores=8, threads=4)) == ["input.storage-bound"]
