"""input.cpu-bound: waits for workers that take all cores fire it;
with free cores, or idle workers, it is another cause.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnosis.cases import found_in_runs, loader, run


@pytest.mark.parametrize(
    ("workers", "cpu", "fires"),
    [
        (8, 0.9, True),  # a worker on each of eight cores
        (7, 0.9, True),  # and one core for training
        (16, 0.5, True),  # two workers share a core
        (1, 0.95, False),  # seven cores are free: more workers would help
        (8, 0.05, False),  # they wait for storage
        (0, 0.0, False),
    ],
)
def test_workers_that_take_all_cores(workers: int, cpu: float, *, fires: bool) -> None:
    sampled = run(shares={"input": 0.3}, workers=workers, worker_cpu_share=cpu)
    found = found_in_runs(sampled, **loader(workers))
    assert ("input.cpu-bound" in found) is fires
    if fires:
        gain = found["input.cpu-bound"].gain
        assert gain is not None
        assert gain.floor <= 1 / (1 - 0.3) <= gain.ceiling
        remedy = found["input.cpu-bound"].remedy
        assert remedy is not None
        assert "device" not in f"{remedy.text} {remedy.patch} {remedy.risk}"  # the job has none


def test_workers_that_take_all_cores_also_slow_the_training_thread() -> None:
    """Of a step 20 % is spent waiting for batches and 30 % waiting for a core: without the workers' load half is
    left.
    """
    facts: dict[str, Any] = {"cores": 2, "threads": 1, "loaders": ({"workers": 2, "persistent_workers": True},)}
    sampled = run(shares={"input": 0.2}, on_cpu_share=0.5, workers=2, worker_cpu_share=0.9)
    gain = found_in_runs(sampled, **facts)["input.cpu-bound"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(2.0, rel=0.03)


def test_busy_workers_that_nobody_waits_for_are_none() -> None:
    assert found_in_runs(run(shares={"input": 0.005}, workers=8, worker_cpu_share=0.9), **loader(8)) == {}


def test_a_loader_of_another_package_is_known_by_what_its_processes_do() -> None:
    """Without a torch loader in the description, the workers that were seen count."""
    sampled = run(shares={"input": 0.3}, workers=8, worker_cpu_share=0.9)
    assert list(found_in_runs(sampled, cores=8, threads=4)) == ["input.cpu-bound"]


@pytest.mark.parametrize(
    ("queued", "cpu", "threads", "others", "fires"),
    [
        (0.27, 0.42, 2, 0.1, True),  # a worker that computes in 42 % of the time, beside two threads on two cores
        (0.06, 0.42, 2, 0.1, False),  # nobody stands in line
        (0.27, 0.1, 2, 0.1, False),  # the worker hardly computes
        (0.27, 0.42, 1, 0.1, False),  # there is a core for each
        (0.27, 0.42, 4, 0.1, False),  # threads of torch alone are too many
        (0.27, 0.42, 2, 0.9, False),  # other processes have the cores
        (None, 0.42, 2, 0.1, False),  # the kernel does not say who stands in line
    ],
)
def test_a_worker_that_delivers_in_time_may_take_a_core_from_training(
    queued: float | None, cpu: float, threads: int, others: float, *, fires: bool
) -> None:
    facts: dict[str, Any] = {"cores": 2, "threads": threads, "loaders": ({"workers": 1, "persistent_workers": True},)}
    sampled = run(
        shares={"input": 0.08},
        on_cpu_share=0.74,
        queued_share=queued,
        workers=1,
        worker_cpu_share=cpu,
        other_cores=others,
        ready_input_ns=10_000_000,
    )
    found = found_in_runs(sampled, **facts)
    assert ("input.cpu-bound" in found) is fires
    if fires:
        gain = found["input.cpu-bound"].gain
        assert gain is not None
        # as the job of benchmarks/slowed was: 30.2 ms in place of 15.4
        assert gain.floor < 30.2 / 15.4 < gain.ceiling
