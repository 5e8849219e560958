"""memory.offload-thrash: state that goes to the device and back in every step fires it; batches, checkpoints and what
compute hides do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import Job, is_worth

from whystall.diagnosis.rules.host import pageable_copy
from whystall.diagnosis.rules.memory import offload_thrash

MB: Final = 1_000_000
NS_PER_MB: Final = 40_000
"""25 GB/s, as over PCIe 4."""
NAMES: Final = {
    "cuda": ("Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"),
    "hip": ("CopyHostToDevice", "CopyDeviceToHost"),
}


def copy(job: Job, name: str, megabytes: int, *, stream: int = 7) -> None:
    job.launch(name, megabytes * NS_PER_MB, call="MemcpyAsync", kind="gpu_memcpy", bytes=megabytes * MB, stream=stream)


def training(
    to_device: int, to_host: int, *, api: str = "cuda", every: int = 1, stream: int = 7, backward: bool = True
) -> Job:
    """Ten steps of 10 ms of kernels, with so many megabytes each way in each step, or in every so many-th."""
    job = Job(api=api)
    fetch, store = NAMES[api]
    for number in job.steps(10):
        if to_device:
            copy(job, fetch, to_device, stream=stream)
        job.operator("aten::mm", "gemm", 4_000_000)
        job.operator("aten::mm", "gemm", 6_000_000, **({"Fwd thread id": 1} if backward else {}))
        if to_host and number % every == 0:
            copy(job, store, to_host, stream=stream)
        job.wait()
    return job


@pytest.mark.parametrize("api", NAMES)
def test_state_that_goes_back_and_forth_is_worth_the_copies(api: str) -> None:
    finding = found_in(training(100, 100, api=api).built)["memory.offload-thrash"]
    is_worth(finding, training(100, 100, api=api).step_ns / training(0, 0, api=api).step_ns)
    told = {one.what: one.value for one in finding.evidence}
    assert told["to the device"] == told["to the host"] == 100 * MB


def fetching(copies: int, megabytes: int, *, back: float = 0, alike: bool = False) -> Job:
    """Ten steps of inference: before each of its products a part's weights are copied to the device.

    At the end copies of ``back`` times their sizes go to the host. Weights differ in size; data is ``alike``.
    """
    job = Job()
    sizes = [megabytes if alike else megabytes * (1 + part % 3) // 2 for part in range(copies)]
    for _ in job.steps(10):
        for size in sizes:
            copy(job, "Memcpy HtoD (Pinned -> Device)", size)
            job.operator("aten::mm", "gemm", 200_000)
        for size in sizes if back else ():
            copy(job, "Memcpy DtoH (Device -> Pinned)", round(size * back))
        job.wait()
    return job


def test_models_that_go_back_unchanged_are_worth_both_ways() -> None:
    job = fetching(40, 5, back=1)
    finding = found_in(job.built)["memory.offload-thrash"]
    is_worth(finding, job.step_ns / fetching(40, 0).step_ns)
    assert "back, unchanged" in finding.title
    assert finding.remedy is not None
    assert "each use of a layer" not in finding.remedy.text


def test_results_of_other_sizes_are_no_weights_that_go_back() -> None:
    assert "for each use" in found_in(fetching(40, 6, back=4).built)["memory.offload-thrash"].title


def test_weights_that_are_fetched_for_every_answer_are_worth_the_copies() -> None:
    finding = found_in(fetching(40, 5).built)["memory.offload-thrash"]
    is_worth(finding, fetching(40, 5).step_ns / fetching(40, 0).step_ns)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(training(100, 1), id="a batch in, a loss out"),
        pytest.param(training(100, 100, every=4), id="a checkpoint now and then"),
        pytest.param(training(100, 100, backward=False), id="images in, masks out"),
        pytest.param(fetching(4, 50), id="a batch of a few tensors"),
        pytest.param(fetching(40, 5, alike=True, back=1), id="tiles of a volume"),
        pytest.param(fetching(40, 5, alike=True), id="batches"),
    ],
)
def test_batches_and_checkpoints_are_none(job: Job) -> None:
    assert "memory.offload-thrash" not in told_of(job.built)


def test_copies_behind_compute_are_told_and_gain_nothing() -> None:
    told = told_of(training(100, 100, stream=20).built)
    assert told["memory.offload-thrash"].severity == "info"


def hooked(copies: int, *, frames: bool = True, copied: bool = True, forward: bool = False) -> Job:
    """Ten steps; hooks around each layer think, copy its weights from pageable memory, and wait for that."""
    job = Job()
    for _ in job.steps(10):
        for _ in range(copies):
            job.python(100)
            begin = job.at
            if copied:
                job.python(300_000)
                with job.inside("aten::to"), job.inside("aten::_to_copy"):
                    job.operator("aten::empty_strided")
                    with job.inside("aten::copy_"):
                        runs = max(job.at + 6_000, job.busy_until.get(7, 0) + 1_000)
                        lasts = runs + 400_000 - job.at
                        job.built.launch(
                            "Memcpy HtoD (Pageable -> Device)", at=job.at, call="cudaMemcpyAsync", call_lasts=lasts,
                            runs_at=runs, lasts=400_000, stream=7, category="gpu_memcpy", bytes=4 * MB,
                        )  # fmt: skip
                        job.busy_until[7], job.at = runs + 400_000, job.at + lasts
                if frames:
                    name = "model.py(9): forward" if forward else "accelerate/hooks.py(328): pre_forward"
                    job.built.python(name, at=begin, lasts=job.at - begin - 20)
                    job.built.python("accelerate/hooks.py(165): new_forward", at=begin - 20, lasts=job.at - begin + 20)
            job.operator("aten::mm", "gemm", 200_000)
        job.wait()
    return job


def test_weights_that_hooks_fetch_are_worth_the_hooks_as_well() -> None:
    finding = found_in(hooked(30).built)["memory.offload-thrash"]
    is_worth(finding, hooked(30).step_ns / hooked(30, copied=False).step_ns, within=0.1)
    assert {one.what for one in finding.evidence}.isdisjoint({"to the host"})
    assert finding.remedy is not None
    assert finding.remedy.text == offload_thrash.CAUSE.remedies["fetched"].text
    assert finding.remedy.patch is None  # no pipeline of diffusers runs here


def test_python_of_the_models_own_forward_stays() -> None:
    """A hook wraps it, and removing copies does not shorten it."""
    with_hooks, own = (found_in(hooked(30, forward=each).built)["memory.offload-thrash"] for each in (False, True))
    assert with_hooks.gain is not None
    assert own.gain is not None
    assert own.gain.expected < 0.97 * with_hooks.gain.expected


def test_pageable_weights_are_no_batches() -> None:
    finding = told_of(hooked(30).built)["host.pageable-copy"]
    assert finding.remedy is not None
    assert finding.remedy.text == pageable_copy.CAUSE.remedies["weights"].text
