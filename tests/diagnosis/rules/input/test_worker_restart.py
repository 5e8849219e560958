"""input.worker-restart: long first fetches of epochs whose workers are not kept fire it;
slow workers and kept ones do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import STEP_NS, found_in, found_in_runs, line, loader, run
from tests.diagnosis.jobs import Job

from whystall.analysis.run_results import SlowStep
from whystall.diagnosis.run_facts import RunFacts

START_NS: Final = 30_000_000  # seen: 29 ms against 1.1 ms (reference: causes.md)
PRODUCT_NS: Final = 2_000_000
TORCH: Final = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def epochs(fetch_ns: int = START_NS, *, steps: int = 40, epoch: int = 10, name: str = TORCH, api: str = "cuda") -> Job:
    """Steps of a fetch and a product of 2 ms; the first fetch of each epoch is long, and the last brings nothing."""
    job = Job(api=api)
    for number in job.steps(steps):
        first = number % epoch == 0
        if first and number:
            with job.marked(name):
                job.python(5_000)
        with job.marked(name):
            job.python(fetch_ns if first else 50_000)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("name", "api"),
    [
        (TORCH, "cuda"),
        (TORCH, "hip"),
        ("enumerate(DataLoader)#_StatefulMultiProcessingDataLoaderIter.__next__", "cuda"),
    ],
)
def test_the_first_fetch_of_an_epoch_is_worth_its_share_of_the_epoch(name: str, api: str) -> None:
    found = found_in(epochs(name=name, api=api).built)["input.worker-restart"]
    assert found.gain is not None
    step = PRODUCT_NS + 60_000
    assert found.gain.floor <= (step + START_NS / 10) / step <= found.gain.ceiling


def short_epochs() -> Job:
    """Epochs of six steps whose ends take 2.5 ms; then four workers are started in 20 ms."""
    job = Job()
    for number in job.steps(36):
        if number % 6 == 0 and number:
            with job.marked(TORCH):
                job.python(2_500_000)
            for _ in range(4):
                job.built.python("multiprocessing/process.py(110): start", at=job.at, lasts=5_000_000)
                job.python(5_000_000)
        with job.marked(TORCH):
            job.python(START_NS if number % 6 == 0 else 50_000)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


def test_stacks_tell_new_workers_and_what_starting_them_costs() -> None:
    """Six steps between two long fetches could be six workers, but for the frames that start processes."""
    found = found_in(short_epochs().built)["input.worker-restart"]
    assert found.gain is not None
    step = PRODUCT_NS + 60_000
    true = (step + (START_NS + 22_500_000) / 6) / step
    assert found.gain.floor <= true <= found.gain.ceiling


def test_starting_and_ending_workers_is_input_and_no_python() -> None:
    """Where stacks show the loader: both in its frames, in which processes are forked and joined."""
    job, handled = Job(), 25_000_000
    for number in job.steps(36):
        if number % 12 == 0 and number:
            with job.marked(TORCH):
                job.python(5_000)
            for frame, lasts in (("__del__", handled // 5), ("__iter__", handled - handled // 5)):
                job.built.python(f"torch/utils/data/dataloader.py(484): {frame}", at=job.at, lasts=lasts)
                job.python(lasts)
        with job.marked(TORCH):
            job.python(5_000_000 if number % 12 == 0 else 50_000)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    found = found_in(job.built)
    assert "host.python" not in found
    gain = found["input.worker-restart"].gain
    assert gain is not None
    step = PRODUCT_NS + 60_000
    assert gain.floor <= (step + (handled + 5_000_000) / 12) / step <= gain.ceiling


def test_the_end_of_an_epoch_may_be_long_itself() -> None:
    job = Job()
    for number in job.steps(40):
        if number % 10 == 0 and number:
            with job.marked(TORCH):
                job.python(2_500_000)
        with job.marked(TORCH):
            job.python(START_NS if number % 10 == 0 else 50_000)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    found = found_in(job.built)["input.worker-restart"]
    assert found.gain is not None
    step = PRODUCT_NS + 60_000
    assert found.gain.floor <= (step + (START_NS + 2_500_000) / 10) / step <= found.gain.ceiling


@pytest.mark.parametrize(
    ("job", "facts"),
    [
        (epochs(50_000), None),  # as long as any other
        (epochs(epoch=4), RunFacts(loaders=({"workers": 4, "persistent_workers": True},))),
        (epochs(), RunFacts(loaders=({"workers": 10, "persistent_workers": True},))),
        (epochs(), RunFacts(loaders=({"workers": 10, "persistent_workers": False, "epochs": 1},))),
        (epochs(name="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), None),
    ],
)
def test_even_fetches_and_workers_that_are_kept_are_none(job: Job, facts: RunFacts | None) -> None:
    assert "input.worker-restart" not in found_in(job.built, facts=facts)


def test_workers_that_are_all_too_slow_deliver_in_bursts() -> None:
    """Every fourth fetch of four workers is long, and no epoch ends."""
    job = Job()
    for number in job.steps(40):
        with job.marked(TORCH):
            job.python(START_NS if number % 4 == 0 else 50_000)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    found = found_in(job.built, facts=RunFacts(loaders=({"workers": 4, "persistent_workers": False},)))
    assert "input.worker-restart" not in found
    assert "input.too-few-workers" in found


@pytest.mark.parametrize(
    ("persistent", "every", "lost", "cause", "epochs"),
    [
        (False, 5, 0.8, "input.worker-restart", None),
        (False, 5, 0.8, "input.worker-restart", 20),
        (False, 10, 2.0, "input.heavy-tail", 1),  # ten long fetches in one epoch, whose workers start once
        (True, 10, 2.0, "input.heavy-tail", None),
        (True, 2, 2.0, "input.too-few-workers", None),  # workers that are too slow deliver in bursts
    ],
)
def test_long_fetches_are_new_workers_rare_samples_or_bursts(
    persistent: bool, every: int, lost: float, cause: str, epochs: int | None
) -> None:
    spikes = [
        SlowStep(step=step, duration_ns=9 * STEP_NS, excess_ns=8 * STEP_NS, lost_ns={"input": round(lost * STEP_NS)})
        for step in range(0, 100, every)
    ]
    total = round(len(spikes) * lost * 5 * STEP_NS)
    sampled = run(shares={"input": 0.2}, slow=spikes, total_ns=total, workers=2, worker_cpu_share=0.5)
    facts = loader(2, persistent=persistent)
    facts["loaders"][0]["epochs"] = epochs
    found = found_in_runs(sampled, **facts)
    assert next(iter(found)) == cause
    gain = found[cause].gain
    assert gain is not None
    assert gain.floor <= 1 / (1 - 0.2) <= gain.ceiling


@pytest.mark.parametrize(("epochs", "once"), [(1, True), (40, False)])
def test_loaders_that_are_made_for_each_epoch_are_to_be_made_once(epochs: int, *, once: bool) -> None:
    slow = [
        SlowStep(step=at, duration_ns=50_000_000, excess_ns=40_000_000, lost_ns={"input": 40_000_000})
        for at in range(5)
    ]
    sampled = run(shares={"input": 0.3}, slow=slow, steps=100, median_ns=10_000_000, total_ns=1_200_000_000)
    facts = loader(2, persistent=False)
    facts["loaders"] = [{**facts["loaders"][0], "epochs": epochs} for _ in range(12)]
    remedy = found_in_runs(sampled, **facts)["input.worker-restart"].remedy
    assert remedy is not None
    assert ("Make the loader once" in remedy.text) is once


def test_long_fetches_that_nothing_shows_to_begin_epochs_may_be_single_samples() -> None:
    """Every thirteenth fetch is long, and none before it brought nothing."""
    job = Job()
    for number in job.steps(40):
        with job.marked(TORCH):
            job.python(START_NS if number % 13 == 4 else 50_000)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    found = found_in(job.built)["input.worker-restart"]
    assert found.could_be == ["input.heavy-tail"]
    assert found.remedy is not None
    assert "prefetch_factor" in (found.remedy.patch or "")
    assert found_in(epochs().built)["input.worker-restart"].could_be == []


@pytest.mark.parametrize("persistent", [False, True])
def test_ending_the_workers_of_an_epoch_is_part_of_it(*, persistent: bool) -> None:
    """A tenth of the time the training thread waits for processes to end: workers, where these are not kept."""
    spikes = [
        SlowStep(step=step, duration_ns=9 * STEP_NS, excess_ns=8 * STEP_NS, lost_ns={"input": 8 * STEP_NS})
        for step in range(0, 100, 20)
    ]
    ends = line(0.1, "trainer.fit(model)", leaf="selectors:select")
    sampled = run(
        shares={"input": 0.2, "other": 0.12},
        slow=spikes,
        total_ns=200 * STEP_NS,
        workers=2,
        worker_cpu_share=0.5,
        places=[ends],
    )
    found = found_in_runs(sampled, **loader(2, persistent=persistent))
    assert ("host.python" in found) is persistent
    assert ("input.worker-restart" in found) is not persistent
    if not persistent:
        gain = found["input.worker-restart"].gain
        assert gain is not None
        assert gain.floor <= 1 / (1 - 0.2 - 0.1) <= gain.ceiling


@pytest.mark.parametrize(("cores", "saved"), [(2, 0.5), (16, 0.2)])
def test_processes_that_start_slow_the_steps_down_that_they_share_cores_with(cores: int, saved: float) -> None:
    """A fifth of the time is waited for new workers, and three tenths are lost to them where they fill the cores."""
    spikes = [
        SlowStep(
            step=step,
            duration_ns=9 * STEP_NS,
            excess_ns=8 * STEP_NS,
            lost_ns={"input": 4 * STEP_NS, "forward": 4 * STEP_NS, "backward": 2 * STEP_NS, "other": STEP_NS},
        )
        for step in range(0, 100, 20)
    ]
    sampled = run(shares={"input": 0.2}, slow=spikes, total_ns=100 * STEP_NS, workers=2)
    gain = found_in_runs(sampled, **{**loader(2, persistent=False), "cores": cores})["input.worker-restart"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(1 / (1 - saved), rel=0.02)
    assert gain.floor <= 1 / 0.8
    assert gain.ceiling >= 2


@pytest.mark.parametrize(
    ("batches", "certain"),
    [
        pytest.param([50], True, id="two epochs"),
        pytest.param([34], True, id="two and the beginning of one"),
        pytest.param([1_000], False, id="an epoch is longer than the run"),
        pytest.param([None], False, id="it is not known"),
        pytest.param([20], False, id="fewer long ones than epochs"),
        pytest.param([50, 50], False, id="of which of two loaders is not known"),
    ],
)
def test_few_epochs_are_enough_where_the_loader_tells_how_long_they_are(
    batches: list[int | None], *, certain: bool
) -> None:
    """Two long fetches in a hundred steps may be chance, unless an epoch has fifty batches."""
    spikes = [
        SlowStep(step=at, duration_ns=11 * STEP_NS, excess_ns=10 * STEP_NS, lost_ns={"input": 10 * STEP_NS})
        for at in (30, 80)
    ]
    errors = {"input": 0.14}  # of a fifth, in two places
    sampled = run(shares={"input": 0.2}, share_errors=errors, slow=spikes, total_ns=100 * STEP_NS, workers=2)
    facts = loader(2, persistent=False)
    facts["loaders"] = [{**facts["loaders"][0], "batches": count} for count in batches]
    found = found_in_runs(sampled, **facts)
    assert ("input.worker-restart" in found) is certain
    if certain:
        gain = found["input.worker-restart"].gain
        assert gain is not None
        assert gain.floor <= 1 / (1 - 0.2) <= gain.ceiling


def test_more_long_fetches_than_epochs_may_be_chance() -> None:
    spikes = [
        SlowStep(step=at, duration_ns=6 * STEP_NS, excess_ns=5 * STEP_NS, lost_ns={"input": 5 * STEP_NS})
        for at in (10, 30, 55, 80)
    ]
    few = run(shares={"input": 0.2}, share_errors={"input": 0.14}, slow=spikes, total_ns=100 * STEP_NS, workers=2)
    facts = loader(2, persistent=False)
    facts["loaders"][0]["batches"] = 100
    assert "input.worker-restart" not in found_in_runs(few, **facts)


def test_workers_that_start_for_each_batch_are_neither_too_few_nor_python_nor_logging() -> None:
    """next(iter(loader)) with two workers: most of a step lies between fetches, where processes start and end."""
    places = [
        line(0.35, "x, y = next(iter(loader))", leaf="selectors:select"),
        line(0.10, "x, y = next(iter(loader))", leaf="threading:wait"),
        line(0.10, "x, y = next(iter(loader))", leaf="logging:_releaseLock"),
        line(0.09, "x, y = next(iter(loader))", part="input", leaf="torch.utils.data.sampler:__iter__"),
        line(0.15, "x, y = next(iter(loader))", part="input", leaf="multiprocessing.popen_fork:_launch"),
        line(0.1, part="backward", at=9),
    ]
    sampled = run(shares={"input": 0.3, "other": 0.6, "backward": 0.1}, on_cpu_share=0.5, places=places)
    facts = {"workers": 2, "epochs": sampled.steps, "taken": sampled.steps, "batches": 40}
    found = found_in_runs(sampled, cores=2, threads=2, loaders=(facts,))
    assert list(found) == ["input.worker-restart"]
    remedy, gain = found["input.worker-restart"].remedy, found["input.worker-restart"].gain
    assert remedy is not None
    assert remedy.text.startswith("Keep one iterator")
    assert gain is not None
    assert gain.expected > 1 / (1 - 0.75)
