"""input.too-few-workers: waits for workers in most steps fire it; ready batches, rare waits and busy cores do not."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in, found_in_runs, line, loader, run, told_of
from tests.diagnosis.jobs import Job, is_worth

STEP_NS: Final = 1_000_000
TORCH: Final = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def training(fetch_ns: int, name: str = TORCH, *, api: str = "cuda", every: int = 1, queued: bool = False) -> Job:
    """Sixteen steps of a fetch and a product of 1 ms; every few of the fetches wait."""
    job = Job(api=api)
    for number in job.steps(16):
        if queued:
            job.operator("aten::mm", "gemm", 2 * fetch_ns)
        with job.marked(name):
            job.python(fetch_ns if number % every == 0 else 10_000)
        job.operator("aten::mm", "gemm", STEP_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("name", "api"),
    [
        (TORCH, "cuda"),
        (TORCH, "hip"),
        ("enumerate(DataLoader)#_StatefulMultiProcessingDataLoaderIter.__next__", "cuda"),  # torchdata, torchtitan
    ],
)
def test_waiting_in_every_step_is_worth_the_wait(name: str, api: str) -> None:
    job = training(600_000, name, api=api)
    is_worth(found_in(job.built)["input.too-few-workers"], job.step_ns / (job.step_ns - 600_000))


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(training(15_000), id="ready"),
        pytest.param(training(600_000, queued=True), id="behind queued work"),
        pytest.param(training(600_000, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), id="none"),
    ],
)
def test_ready_batches_and_loaders_without_workers_are_none(job: Job) -> None:
    assert "input.too-few-workers" not in found_in(job.built)


def test_where_most_fetches_hardly_wait_single_samples_or_new_workers_are_not_ruled_out() -> None:
    found = found_in(training(4_000_000, every=4).built)["input.too-few-workers"]
    slow = ["input.cpu-bound", "input.storage-bound"]
    assert found.could_be == ["input.heavy-tail", "input.worker-restart", *slow]
    always = found_in(training(4_000_000).built)["input.too-few-workers"]
    assert always.could_be == slow
    assert always.remedy is not None
    assert "cheaper" in always.remedy.text
    assert "storage" in always.remedy.text


def test_a_wait_behind_queued_work_is_told_and_left() -> None:
    told = told_of(training(600_000, queued=True).built)["input.too-few-workers"]
    assert told.severity == "info"
    assert "leave it" in told.title


@pytest.mark.parametrize(("workers", "cpu"), [(1, 0.02), (2, 0.5)])
def test_workers_that_do_not_keep_up_on_a_machine_with_free_cores(workers: int, cpu: float) -> None:
    sampled = run(shares={"input": 0.3}, workers=workers, worker_cpu_share=cpu)
    found = found_in_runs(sampled, **loader(workers))
    assert list(found) == ["input.too-few-workers"]
    is_worth(found["input.too-few-workers"], 1 / (1 - 0.3))


@pytest.mark.parametrize(("workers", "cpu"), [(8, 0.9), (8, 0.05)])
def test_workers_without_cores_or_data_are_other_causes(workers: int, cpu: float) -> None:
    sampled = run(shares={"input": 0.3}, workers=workers, worker_cpu_share=cpu)
    assert "input.too-few-workers" not in found_in_runs(sampled, **loader(workers))


def test_handing_over_a_batch_that_is_ready_is_no_wait_for_workers() -> None:
    """Each step waits as long as any other, and no longer than a hand-over takes: more workers would change nothing."""
    facts: dict[str, Any] = {"shares": {"input": 0.08}, "workers": 2, "worker_cpu_share": 0.1}
    assert found_in_runs(run(**facts, ready_input_ns=2_000_000), **loader(2)) == {}
    assert list(found_in_runs(run(**facts), **loader(2))) == ["input.too-few-workers"]


def test_one_odd_step_is_no_slow_loader() -> None:
    """A wait of 0.8 s in one of a hundred steps of 0.1 s: 8 % of the time, and the error of that is as large."""
    facts: dict[str, Any] = {"shares": {"input": 0.08}, "workers": 2, "worker_cpu_share": 0.1}
    assert found_in_runs(run(**facts, share_errors={"input": 0.08}), **loader(2)) == {}
    assert list(found_in_runs(run(**facts, share_errors={"input": 0.001}), **loader(2))) == ["input.too-few-workers"]


def test_a_healthy_run_has_no_finding() -> None:
    looks = [line(0.9, part="forward"), line(0.04, leaf="torch.nn.functional:cross_entropy")]
    assert found_in_runs(run(places=looks), **loader(2)) == {}


def test_too_few_steps_say_nothing() -> None:
    assert found_in_runs(run(shares={"input": 0.5}, steps=6, workers=2), **loader(2)) == {}


@pytest.mark.parametrize(
    ("workers", "cores", "busy", "wanted"),
    [(2, 16, 0.02, 3), (1, 2, 0.02, 2), (3, 16, 0.5, 5), (3, 5, 0.5, 4), (3, 4, 0.4, 4), (6, 32, 0.1, 9)],
)
def test_the_remedy_has_the_workers_that_keep_up_as_far_as_those_that_compute_have_cores(
    workers: int, cores: int, busy: float, wanted: int
) -> None:
    """Of 30 % waits: workers by 1 / 0.7."""
    facts = {**loader(workers), "cores": cores}
    sampled = run(shares={"input": 0.3}, workers=workers, worker_cpu_share=busy)
    remedy = found_in_runs(sampled, **facts)["input.too-few-workers"].remedy
    assert remedy is not None
    assert remedy.patch == f"DataLoader(..., num_workers={wanted}, persistent_workers=True, prefetch_factor=4)"


def test_where_more_workers_than_four_times_as_many_were_needed_the_gain_is_what_those_make() -> None:
    """One worker that is waited for 90 % of the time: ten would keep up, four are proposed."""
    found = found_in_runs(run(shares={"input": 0.9}, workers=1, worker_cpu_share=0.02), **loader(1))[
        "input.too-few-workers"
    ]
    assert found.remedy is not None
    assert "num_workers=4," in (found.remedy.patch or "")
    assert found.gain is not None
    assert found.gain.expected == pytest.approx(4, rel=0.01)
