"""compute.frozen-forward: passes of networks that learn nothing are found, with a gain that begins at 1.0."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import A100, Job, shaped

LAYERS: Final = 12
LAYER_NS: Final = 400_000
TRAINED: Final = ([512, 1_024], [1_024, 2_048])
ENCODER: Final = ([512, 768], [768, 3_072])
KERNEL: Final = "ampere_bf16_s16816gemm_bf16_128x128_ldg8"


def layers(
    job: Job, sizes: tuple[list[int], list[int]], count: int = LAYERS, behind: str = "aten::gelu", **more: Any
) -> None:
    for _ in range(count):
        with job.inside("aten::linear", **more):
            job.operator("aten::mm", KERNEL, LAYER_NS, **shaped(*sizes, dtype="c10::BFloat16"), **more)
        job.operator(behind, "elementwise_kernel", 5_000, **more)


def training(
    encoder: tuple[list[int], list[int]] | None = ENCODER,
    *,
    count: int = LAYERS,
    recomputes: bool = False,
    every: int = 1,
    in_optimizer: bool = False,
    behind: str = "aten::gelu",
) -> Job:
    """Eight steps of a network that learns, after another that does not."""
    job = Job(A100)
    for number in job.steps(8):
        if encoder is not None and not in_optimizer and number % every == every - 1:
            layers(job, encoder, count, behind)
        forward: dict[str, Any] = {"Sequence number": 7}
        layers(job, TRAINED, **forward)
        more = {"Sequence number": 7, "Fwd thread id": 1}
        with job.inside("autograd::engine::evaluate_function: MmBackward0", **more):
            layers(job, encoder if recomputes and encoder else TRAINED)
        with job.marked("Optimizer.step#Muon.step"):
            if in_optimizer:
                layers(job, encoder or ENCODER)
        job.wait()
    return job


def test_an_encoder_is_worth_its_passes_if_samples_come_back() -> None:
    job = training()
    finding = told_of(job.built)["compute.frozen-forward"]
    assert finding.gain is not None
    assert finding.gain.floor == 1.0
    assert finding.gain.expected == pytest.approx(job.step_ns / training(None).step_ns, rel=0.03)
    assert {one.what: one.value for one in finding.evidence}["their layers"] == LAYERS


def preferences(reference: str | None = "Policy_1", *, named: bool = True, averaged: bool = False) -> Job:
    """Eight steps of a policy that learns, each with a pass of a reference of the same sizes without autograd."""
    job = Job(A100)
    learns: dict[str, Any] = {"Sequence number": 7}
    for _ in job.steps(8):
        if reference is not None:
            with job.module(reference if named else "Loop_0"):
                layers(job, TRAINED)
        if averaged:
            job.operator("aten::lerp_", "elementwise_kernel", 5_000, **shaped(TRAINED[1], TRAINED[1]))
        with job.module("Policy_0" if named else "Loop_0"):
            layers(job, TRAINED, **learns)
        with job.inside("autograd::engine::evaluate_function: MmBackward0", **{"Fwd thread id": 1}):
            layers(job, TRAINED)
        job.wait()
    return job


def test_a_reference_of_the_same_sizes_is_known_by_its_modules() -> None:
    job = preferences()
    gain = told_of(job.built)["compute.frozen-forward"].gain
    assert gain is not None
    assert gain.floor == 1.0
    assert gain.expected == pytest.approx(job.step_ns / preferences(None).step_ns, rel=0.03)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(preferences(averaged=True), id="an average of the weights"),
        pytest.param(preferences("Policy_0"), id="the policy itself before it learns"),
        pytest.param(preferences(named=False), id="modules that the recording does not tell apart"),
    ],
)
def test_a_network_that_changes_in_each_step_is_not_frozen(job: Job) -> None:
    assert "compute.frozen-forward" not in told_of(job.built)


def test_a_pass_whose_inputs_may_be_new_is_no_certain_finding() -> None:
    assert "compute.frozen-forward" not in found_in(training().built)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(training(TRAINED), id="the same network: an average of its weights, a policy that acts"),
        pytest.param(training(count=4), id="a few products: metrics"),
        pytest.param(training(recomputes=True), id="checkpointing: the backward pass runs it again"),
        pytest.param(training(every=5), id="an evaluation"),
        pytest.param(training(in_optimizer=True), id="an optimizer that multiplies matrices"),
        pytest.param(training(None), id="none"),
        pytest.param(training(behind="aten::add"), id="an algorithm that iterates"),
        pytest.param(training(behind="aten::argmax"), id="an engine that generates"),
    ],
)
def test_others_are_none(job: Job) -> None:
    assert "compute.frozen-forward" not in told_of(job.built)


def test_without_a_backward_pass_nothing_is_frozen() -> None:
    job = Job(A100)
    for _ in job.steps(8):
        layers(job, ENCODER)
        job.wait()
    assert "compute.frozen-forward" not in told_of(job.built)
