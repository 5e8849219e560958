"""host.cpu-tensors: operators that the host carries out fire it; calls, views, loaders and optimizers do not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth

from whystall.diagnosis.rules.host.cpu_tensors import CAUSE

LAYERS: Final = 20
KERNEL_NS: Final = 40_000
TABLE_NS: Final = 400_000
LAUNCHED_NS: Final = CAUSE.threshold("launched_ns")


def compute(job: Job, name: str = "aten::cos", lasts: int = TABLE_NS) -> bool:
    """An operator that launches nothing."""
    with job.inside(name):
        job.python(lasts - 2_000)
    return True


def job_of(between: Callable[[Job, int], object], *, copies: bool = True, sync: bool = True) -> Job:
    """Eight steps: what comes first, a copy of it to the device, layers, and a wait."""
    job = Job()
    for number in job.steps(8):
        between(job, number)
        if copies:
            job.operator("aten::copy_", "Memcpy HtoD (Pageable -> Device)", 5_000)
        for _ in range(LAYERS):
            job.operator("aten::mm", "ampere_sgemm_128x128_nn", KERNEL_NS)
        if sync:
            job.wait()
    return job


def test_a_table_that_the_host_builds_in_each_step_is_worth_all_but_its_launches() -> None:
    job = job_of(lambda job, _: [compute(job, name) for name in ("aten::arange", "aten::cos", "aten::cat")])
    finding = found_in(job.built)["host.cpu-tensors"]
    is_worth(finding, job.step_ns / (job.step_ns - 3 * (TABLE_NS - LAUNCHED_NS)))
    assert finding.evidence[0].value == 3 * TABLE_NS
    assert finding.evidence[2].value.startswith("aten::")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "patch"),
    [("aten::index_select", "filter_per_worker"), ("aten::_fft_r2c", "x.to(device)"), ("aten::cos", "torch.arange")],
)
def test_rows_that_the_host_picks_and_inputs_that_it_changes_have_remedies_of_their_own(name: str, patch: str) -> None:
    finding = found_in(job_of(lambda job, _: [compute(job, name), compute(job, "aten::cat", 100_000)]).built)
    remedy = finding["host.cpu-tensors"].remedy
    assert remedy is not None
    assert patch in (remedy.patch or "")


def test_what_the_device_hides_is_worth_nothing() -> None:
    """The device has a whole step in its queue while the host builds the table."""
    job = Job()
    for _ in job.steps(12):
        for _ in range(LAYERS):
            job.operator("aten::mm", "ampere_sgemm_128x128_nn", 20 * KERNEL_NS)
        compute(job)
    found = found_in(job.built).get("host.cpu-tensors")
    assert found is None or found.severity == "info"


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(lambda job, _: [compute(job, "aten::cos", 30_000) for _ in range(40)], id="calls"),
        pytest.param(lambda job, _: compute(job, "aten::empty"), id="memory"),
        pytest.param(lambda job, _: compute(job, "aten::view"), id="views"),
        pytest.param(lambda job, _: compute(job, "mylib::tokens"), id="other libraries"),
        pytest.param(lambda job, number: compute(job) if number == 3 else None, id="one step"),
    ],
)
def test_others_do_not_compute(between: Callable[[Job, int], object]) -> None:
    assert "host.cpu-tensors" not in found_in(job_of(between).built)


def test_an_operator_that_launches_by_what_it_calls_is_the_devices() -> None:
    def outer(job: Job, _: int) -> None:
        with job.inside("aten::cos"):
            job.python(TABLE_NS)
            job.operator("aten::cos", "vectorized_elementwise_kernel", 3_000)

    assert "host.cpu-tensors" not in found_in(job_of(outer).built)


@pytest.mark.parametrize(
    "around", ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "Optimizer.step#Adam.step"]
)
def test_a_batch_and_an_offloaded_optimizer_have_causes_of_their_own(around: str) -> None:
    def within(job: Job, _: int) -> None:
        with job.marked(around) if around else nullcontext():
            compute(job, "aten::stack" if "Loader" in around else "aten::addcdiv_")

    assert "host.cpu-tensors" not in found_in(job_of(within).built)


def test_a_recording_that_links_no_kernel_to_an_operator_says_nothing() -> None:
    job = Job()
    for _ in job.steps(8):
        compute(job)
        for _ in range(LAYERS):
            job.launch("ampere_sgemm_128x128_nn", KERNEL_NS)
        job.wait()
    assert "host.cpu-tensors" not in found_in(job.built)


TRIP_NS: Final = 2_000_000
MASK_NS: Final = 300_000


def trips(name: str = "mylib::suppress", *, own_ns: int = TRIP_NS, back: bool = True) -> Job:
    """Eight steps of layers, and an operator that copies a mask to the host, works on it there, and goes back."""
    job = Job()
    for _ in job.steps(8):
        for _ in range(LAYERS):
            job.operator("aten::mm", "ampere_sgemm_128x128_nn", KERNEL_NS)
        with job.inside(name):
            job.launch("mask_kernel", 50_000)
            with job.inside("aten::copy_"):
                job.launch("Memcpy DtoH (Device -> Pageable)", MASK_NS, call="MemcpyAsync")
                job.wait()
            job.python(own_ns)
            if back:
                with job.inside("aten::copy_"):
                    job.launch("Memcpy HtoD (Pageable -> Device)", 2_000, call="MemcpyAsync")
            job.operator("aten::index", "vectorized_gather_kernel", 5_000)
        job.wait()
    return job


def test_an_operator_that_goes_on_at_the_host_is_named_with_its_copies() -> None:
    """Without them the host need not wait within it: its launches are ready when the layers end."""
    job = trips()
    finding = found_in(job.built)["host.cpu-tensors"]
    assert "mylib::suppress copies its data to the host" in finding.title
    assert finding.remedy is not None
    assert "stays on the device" in finding.remedy.text
    saved = TRIP_NS + MASK_NS
    is_worth(finding, job.step_ns / (job.step_ns - saved), within=0.1)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(trips(own_ns=100_000), id="short"),
        pytest.param(trips(back=False), id="a value that is read"),
        pytest.param(trips("autograd::engine::evaluate_function: MyBackward"), id="a pass"),
        pytest.param(trips("MyFunction"), id="a function of the user's"),
    ],
)
def test_others_make_no_round_trip(job: Job) -> None:
    found = found_in(job.built).get("host.cpu-tensors")
    assert found is None or "copies its data to the host" not in found.title
