"""Loops in Python that launch a few small kernels for each element: their gain is that of all turns at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.diagnosis.cases import told_of
from tests.diagnosis.jobs import Job, is_worth

KERNEL_NS = 2_000
TURNS = 300
NAMES = ("mul", "add", "sub", "mul")
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float>>"


def turn(job: Job) -> None:
    for name in NAMES:
        job.operator(f"aten::{name}", POINTWISE, KERNEL_NS)


def reading(job: Job) -> None:
    """Each turn branches on a value of the device."""
    turn(job)
    begin = job.at
    job.at += 3_000
    job.launch("Memcpy DtoH (Device -> Pageable)", 1_000, call="MemcpyAsync", category="gpu_memcpy")
    job.call("StreamSynchronize", job.busy_until[7] - job.at + 2_000)
    job.built.operator("aten::is_nonzero", at=begin, lasts=job.at - begin)


def in_place(job: Job) -> None:
    for name in ("mul_", "add_", "sub_"):
        job.operator(f"aten::{name}", POINTWISE, KERNEL_NS)


def layer(job: Job) -> None:
    job.operator("aten::mm", "ampere_sgemm_32x32", KERNEL_NS)
    turn(job)


def chain(job: Job) -> None:
    """Two hundred different operators that are written out."""
    for number in range(200):
        job.operator(f"aten::special_{number % 40}", POINTWISE, KERNEL_NS)


def training(body: Callable[[Job], None], turns: int = TURNS, *, optimizer: bool = False) -> Job:
    """Eight steps of a loop and of ten products of a millisecond, with a wait at the end of each."""
    job = Job()
    for _ in job.steps(8):
        begin = job.at
        for _ in range(turns):
            body(job)
        if optimizer:
            job.built.annotation("Optimizer.step#Mine.step", at=begin, lasts=job.at - begin)
        for _ in range(10):
            job.operator("aten::mm", "ampere_sgemm_128x128", 1_000_000)
        job.wait()
    return job


def test_a_loop_of_small_operators_is_worth_all_turns_but_a_few() -> None:
    """1,200 calls become four for each of three operators."""
    found = told_of((looped := training(turn)).built)["host.launch-bound"]
    assert found.title.endswith("a loop in Python calls the same few operators over and over")
    assert "all turns of the loop at once" in str(found.remedy)
    assert found.evidence[0].value == TURNS * len(NAMES)
    assert found.evidence[1].value == "aten::mul, aten::add, aten::sub"
    is_worth(found, looped.step_ns / training(turn, 3).step_ns)


def test_a_loop_that_reads_a_value_in_each_turn_is_one_of_waits() -> None:
    looped = training(reading)
    found = told_of(looped.built)
    assert "host.launch-bound" not in found or found["host.launch-bound"].severity == "info"
    assert found["host.sync"].title.endswith("a loop in Python calls the same few operators over and over")
    is_worth(found["host.sync"], looped.step_ns / training(turn, 4).step_ns, within=0.08)


@pytest.mark.parametrize(
    ("body", "turns", "optimizer"),
    [
        (in_place, TURNS, False),  # a loop over tensors
        (layer, TURNS, False),  # layers of a model repeat as well
        (chain, 1, False),
        (turn, 20, False),
        (turn, TURNS, True),
    ],
)
def test_other_repetitions_are_no_such_loops(body: Callable[[Job], None], turns: int, *, optimizer: bool) -> None:
    found = told_of(training(body, turns, optimizer=optimizer).built)
    assert not any("over and over" in one.title for one in found.values())


def test_long_kernels_of_a_loop_hide_its_launches() -> None:
    def long(job: Job) -> None:
        for name in NAMES:
            job.operator(f"aten::{name}", POINTWISE, 30_000)

    found = told_of(training(long).built)
    assert not any("over and over" in one.title for one in found.values())
