"""host.anomaly-detection: searches that the autograd engine makes beside its calls fire it; the job's own do not."""

from __future__ import annotations

from typing import Any

from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, GAP_NS, Job, is_worth, shaped

STACK_NS = 100_000
SEARCH_NS = 20_000
WORK_NS = 200_000
LAYERS = 20


def works(job: Job, name: str, lasts: int, **more: Any) -> None:
    with job.inside(name, **more):
        job.python(lasts)


def trained(*, searches: bool, stack_ns: int = 0, checks_loss: bool = False) -> Job:
    """Eight steps of layers, each a view and its work, and the backward pass through them."""
    job = Job()
    for _ in job.steps(8):
        for layer in range(LAYERS):
            numbers = {"Sequence number": layer, "Fwd thread id": 0}
            works(job, "aten::t", 2_000 + stack_ns, **numbers)
            works(job, "aten::gelu", WORK_NS + stack_ns, **numbers, **shaped([64, 128]))
        if checks_loss:
            works(job, "aten::isnan", SEARCH_NS)
        for layer in reversed(range(LAYERS)):
            numbers = {"Sequence number": layer, "Fwd thread id": 1}
            with job.inside("autograd::engine::evaluate_function: GeluBackward0", **numbers):
                works(job, "GeluBackward0", WORK_NS, **numbers)
                if searches:
                    works(job, "aten::isnan", SEARCH_NS)
    return job


def test_searches_and_stacks_are_what_it_costs() -> None:
    finding = found_in(trained(searches=True, stack_ns=STACK_NS).built)["host.anomaly-detection"]
    healthy = 2 * WORK_NS + 10_000
    is_worth(finding, (healthy + 2 * STACK_NS + SEARCH_NS) / healthy, within=0.1)


def test_a_loss_that_is_checked_is_none() -> None:
    assert "host.anomaly-detection" not in found_in(trained(searches=False, checks_loss=True).built)


def on_a_device(*, searches: bool) -> Job:
    """Eight steps of layers. The host runs ahead of the device, unless it reads each gradient's search."""
    job = Job(A100)
    for _ in job.steps(8):
        for layer in range(LAYERS):
            numbers = {"Sequence number": layer, "Fwd thread id": 0}
            job.operator("aten::gelu", "gelu_kernel", WORK_NS, **numbers, **shaped([64, 128]))
        for layer in reversed(range(LAYERS)):
            numbers = {"Sequence number": layer, "Fwd thread id": 1}
            with job.inside("autograd::engine::evaluate_function: GeluBackward0", **numbers):
                with job.inside("GeluBackward0", **numbers):
                    job.operator("aten::gelu_backward", "gelu_backward_kernel", WORK_NS, **numbers)
                if searches:
                    job.operator("aten::isnan", "isnan_kernel", SEARCH_NS, **shaped([64, 128]))
                    job.operator("aten::_is_any_true", "any_kernel", SEARCH_NS // 4)
                    with job.inside("aten::item"):
                        job.launch("Memcpy DtoH (Device -> Pageable)", 1_000, call="MemcpyAsync")
                        job.wait()
    job.wait()
    return job


def test_on_a_device_the_searches_their_kernels_and_their_waits_are_gone() -> None:
    job = on_a_device(searches=True)
    finding = found_in(job.built)["host.anomaly-detection"]
    is_worth(finding, job.step_ns / (2 * LAYERS * (WORK_NS + GAP_NS)), within=0.05)
