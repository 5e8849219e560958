"""input.too-few-workers: waits for workers in most steps fire it; ready batches, rare waits and busy cores do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


SLEEP: Final = "<built-in function sleep>"
LOCK: Final = "<built-in method acquire of _thread.lock object at 0x7f0c5c2b1a80>"
MAIN: Final = "train.py(12): main"
NEXT: Final = "batchgenerators/dataloading/nondet_multi_threaded_augmenter.py(207): __next__"
ITEM: Final = "batchgenerators/dataloading/nondet_multi_threaded_augmenter.py(191): __get_next_item"
QUEUE: Final = "queue.py(154): get"
TO_HOST: Final = "Memcpy DtoH (Device -> Pinned)"


def fed(
    around: Sequence[str],
    wait: str = SLEEP,
    wait_ns: int = 3_000_000,
    *,
    pieces: int = 3,
    works_ns: int = 0,
    copies: bool = True,
    trains: bool = True,
    synced: bool = True,
    inside: str = "",
    within: Callable[[Job], object] = lambda _job: None,
    behind: Callable[[Job], object] = lambda _job: None,
) -> Job:
    """Sixteen steps of 1 ms on the device. Before each, the host waits in pieces inside some calls of Python functions.

    In these calls it also works for some time, and perhaps calls another function.
    """
    job = Job()
    for _ in job.steps(16):
        begin = job.at
        job.python(5_000)
        for _ in range(pieces):
            if wait_ns:
                job.built.python(wait, at=job.at + 1_000, lasts=wait_ns // pieces - 2_000)
                job.python(wait_ns // pieces)
        job.python(works_ns)
        within(job)
        if inside:
            job.built.python(inside, at=job.at + 1_000, lasts=10_000)
        job.python(20_000)
        for depth, name in enumerate(reversed(around)):
            job.built.python(name, at=begin + 2_000 - depth * 500, lasts=job.at - begin - 2_000 + depth * 1_000)
        job.python(10_000)
        if copies:
            job.operator("aten::copy_", "Memcpy HtoD (Pinned -> Device)", 50_000)
        job.operator("aten::mm", "gemm", STEP_NS)
        if trains:
            with job.marked("Optimizer.step#SGD.step"):
                job.operator("aten::add_", "add", 10_000)
        behind(job)
        if synced:
            job.wait()
    job.built.python(MAIN, at=-100, lasts=job.at + 200)
    return job


def sends(job: Job) -> None:
    job.operator("aten::copy_", TO_HOST, 5_000)


def multiplies(job: Job) -> None:
    job.operator("aten::mm", "gemm", 10_000)


ANY_ITERATOR: Final = [
    pytest.param((NEXT, ITEM), SLEEP, id="batchgenerators"),
    pytest.param(("ffcv/loader/epoch_iterator.py(150): __next__", QUEUE, "threading.py(295): wait"), LOCK, id="ffcv"),
    pytest.param(("mine.py(8): __next__", "multiprocessing/connection.py(246): recv"), "<built-in read>", id="a pipe"),
    pytest.param(("<built-in function next>", "mine.py(8): batches"), SLEEP, id="a generator"),
    pytest.param(("mine.py(8): __next__",), "<built-in method poll of select.poll object at 0x7f>", id="poll"),
    pytest.param((QUEUE, "threading.py(295): wait"), LOCK, id="a queue"),
]


@pytest.mark.parametrize(("around", "wait"), ANY_ITERATOR)
def test_waiting_in_any_iterator_is_worth_the_wait(around: Sequence[str], wait: str) -> None:
    waiting, ready = fed(around, wait), fed(around, wait, 0)
    found = found_in(waiting.built)
    is_worth(found["input.too-few-workers"], waiting.step_ns / ready.step_ns, within=0.07)
    assert "iterator" in found["input.too-few-workers"].title
    assert "host.python" not in found
    assert found["input.too-few-workers"].remedy is not None
    assert "num_workers" not in (found["input.too-few-workers"].remedy.patch or "")


@pytest.mark.parametrize("pieces", [1, 30])
def test_the_line_is_that_of_the_loop_and_pieces_are_one_wait(pieces: int) -> None:
    found = found_in(fed((NEXT, ITEM), pieces=pieces).built)["input.too-few-workers"]
    assert [(one.file, one.line) for one in found.code] == [("train.py", 12)]
    assert found.evidence[0].value == pytest.approx(3_000_000, rel=0.05)


@pytest.mark.parametrize("wait_ns", [1_600_000, 3_000_000])
def test_a_wait_that_the_devices_backlog_hides_in_part_is_worth_what_is_left(wait_ns: int) -> None:
    waiting, ready = fed((NEXT,), wait_ns=wait_ns, synced=False), fed((NEXT,), wait_ns=0, synced=False)
    found = found_in(waiting.built)["input.too-few-workers"]
    is_worth(found, waiting.step_ns / max(ready.step_ns, STEP_NS + 63_000), within=0.07)


def test_a_wait_that_the_backlog_hides_is_left() -> None:
    assert "input.too-few-workers" not in found_in(fed((NEXT,), wait_ns=600_000, synced=False).built)


def test_what_an_iterator_does_to_hand_a_batch_over_is_part_of_it() -> None:
    around = (NEXT, ITEM)
    waiting, ready = fed(around, works_ns=500_000), fed(around, wait_ns=0)
    is_worth(found_in(waiting.built)["input.too-few-workers"], waiting.step_ns / ready.step_ns, within=0.07)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(fed((NEXT, ITEM), wait_ns=0, works_ns=3_000_000), id="an iterator that works"),
        pytest.param(fed(("train.py(30): pace",)), id="a sleep in no iterator"),
        pytest.param(fed(("train.py(30): __next__",), inside="torch/_tensor.py(570): backward"), id="that trains"),
        pytest.param(fed((QUEUE,), LOCK, copies=False), id="a queue whose item is not copied"),
        pytest.param(fed((QUEUE,), LOCK, trains=False), id="a queue of requests"),
        pytest.param(fed(("grpc/_server.py(800): __next__",), LOCK, trains=False), id="a server's requests"),
        pytest.param(
            fed((QUEUE,), LOCK, behind=sends),
            id="a queue of answers: environments, verifiers",
        ),
        pytest.param(
            fed(("rollout.py(9): __next__",), within=multiplies),
            id="an iterator that asks a policy",
        ),
        pytest.param(
            fed(("mine.py(8): __next__", "torch/distributed/distributed_c10d.py(2800): all_reduce"), LOCK), id="ranks"
        ),
        pytest.param(fed(("train.py(30): locked",), LOCK), id="a lock"),
    ],
)
def test_other_python_is_no_wait_for_a_batch(job: Job) -> None:
    found = found_in(job.built)
    assert "input.too-few-workers" not in found
    assert "host.python" in found


def test_torchs_own_loader_is_told_once() -> None:
    """Within its ``__next__``, which the profiler marks, it waits for a queue."""
    job = Job()
    for _ in job.steps(16):
        with job.marked(TORCH):
            begin = job.at
            job.built.python("torch/utils/data/dataloader.py(700): __next__", at=begin + 10, lasts=600_000 - 20)
            job.built.python(QUEUE, at=begin + 30, lasts=600_000 - 60)
            job.python(600_000)
        job.operator("aten::copy_", "Memcpy HtoD (Pinned -> Device)", 10_000)
        job.operator("aten::mm", "gemm", STEP_NS)
        job.wait()
    job.built.python(MAIN, at=-100, lasts=job.at + 200)
    found = found_in(job.built)["input.too-few-workers"]
    is_worth(found, job.step_ns / (job.step_ns - 600_000))
    assert "iterator" not in found.title


NEXT_LINE: Final = "batch = next(self.dataloader_train)"


@pytest.mark.parametrize(
    ("text", "leaf"),
    [(NEXT_LINE, "(a call)"), (NEXT_LINE, "queue:get"), ("for batch in augmenter:", "threading:wait")],
)
def test_a_watched_job_that_waits_at_an_iterator(text: str, leaf: str) -> None:
    looks = [line(0.5, text, leaf=leaf), line(0.5, part="forward")]
    found = found_in_runs(run(shares={"other": 0.5, "forward": 0.45}, on_cpu_share=0.5, places=looks))
    assert list(found) == ["input.too-few-workers"]
    is_worth(found["input.too-few-workers"], 2.0)
    assert "iterator" in found["input.too-few-workers"].title


@pytest.mark.parametrize(
    ("text", "leaf", "on_core"),
    [
        (NEXT_LINE, "(a call)", 0.98),  # it works there
        (NEXT_LINE, "mine:make", 0.5),
        ("time.sleep(0.1)", "(a call)", 0.5),
        ("lock.acquire()", "(a call)", 0.5),
        ("item = inbox.get(timeout=1)", "queue:get", 0.5),
    ],
)
def test_other_lines_of_a_watched_job_are_no_wait_for_a_batch(text: str, leaf: str, on_core: float) -> None:
    looks = [line(0.5, text, leaf=leaf), line(0.5, part="forward")]
    found = found_in_runs(run(shares={"other": 0.5, "forward": 0.45}, on_cpu_share=on_core, places=looks))
    assert "input.too-few-workers" not in found


def test_a_line_of_torchs_own_loader_is_no_other_iterator() -> None:
    """Outside of its fetches the line starts and ends workers."""
    looks = [line(0.4, NEXT_LINE, leaf="selectors:select"), line(0.1, NEXT_LINE, part="input"), line(0.5)]
    found = found_in_runs(run(shares={"other": 0.5, "forward": 0.45}, on_cpu_share=0.5, places=looks))
    assert "input.too-few-workers" not in found
