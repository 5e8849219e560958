"""host.small-operators: a model that is called with one item at a time, by the join of what it gives."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth

ITEMS = 12
HIDDEN_NS, SCORE_NS, OTHER_NS = 900_000, 100_000, 6_000_000
# 64 rows of 192 numbers by 192 x 768: 18.9 MFLOP, 0.24 ms on a usual core.
HIDDEN = [[768], [64, 192], [192, 768]]
SCORE = [[1], [1, 768], [768, 1]]


def call(job: Job, name: str, sizes: list[Any], lasts: int) -> None:
    types = ["float"] * len(sizes)
    with job.inside(name, **{"Input Dims": sizes, "Input type": types}):  # type: ignore[arg-type]
        job.python(lasts)


def request(job: Job, *, joined: list[int], reads: bool = False, other: bool = False) -> None:
    """A dozen items, each through two layers, and what joins their scores."""
    for item in range(ITEMS):
        call(job, "aten::addmm", HIDDEN, HIDDEN_NS)
        if other and item % 5 == 2:
            call(job, "aten::mm", [[64, 768], [768, 8]], SCORE_NS)
        call(job, "aten::addmm", SCORE, SCORE_NS)
        if reads:
            call(job, "aten::_local_scalar_dense", [[1]], 1_000)
    call(job, "aten::cat", [[joined] * ITEMS, []], 10_000)
    call(job, "aten::mm", [[2048, 512], [512, 512]], OTHER_NS)


def service(**options: Any) -> Job:
    job = Job()
    for _ in job.steps(8):
        request(job, **options)
    return job


def test_items_that_are_scored_one_by_one_are_worth_the_calls_that_a_batch_spares() -> None:
    """Twelve of 1 ms each and 0.24 ms of arithmetic; a batch leaves that, and a twelfth and a tenth of the rest."""
    finding = found_in(service(joined=[1]).built)["host.small-operators"]
    needed = ITEMS * 2 * 64 * 192 * 768 / 8e10 * 1e9
    taken = ITEMS * (HIDDEN_NS + SCORE_NS)
    left = needed + (1 / ITEMS + 0.1) * (taken - needed)
    is_worth(finding, (taken + OTHER_NS) / (left + OTHER_NS), within=0.03)
    assert "12 items" in finding.title


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(service(joined=[1], reads=True), id="a number is read for each: the next may depend on it"),
        pytest.param(service(joined=[64, 192]), id="what is joined has many rows"),
        pytest.param(service(joined=[1, 5]), id="nothing that they give has this size"),
        pytest.param(service(joined=[1], other=True), id="not all items go the same way"),
    ],
)
def test_others_are_not(job: Job) -> None:
    assert "host.small-operators" not in found_in(job.built)


def test_a_recording_of_steps_that_are_single_items_sees_a_part_of_a_request() -> None:
    job = Job()
    for step in job.steps(9):
        if step == 0:
            call(job, "aten::cat", [[[1]] * ITEMS, []], 10_000)
        call(job, "aten::addmm", HIDDEN, HIDDEN_NS)
        call(job, "aten::addmm", SCORE, SCORE_NS)
    assert "12 items" in found_in(job.built)["host.small-operators"].title


def test_as_many_layers_as_were_joined_before_are_no_items() -> None:
    """Four sequences are joined, and a model of four like layers is given them."""
    job = Job()
    for _ in job.steps(8):
        call(job, "aten::cat", [[[1, 64]] * 4, []], 10_000)
        for _layer in range(4):
            call(job, "aten::addmm", [[768], [256, 192], [192, 768]], HIDDEN_NS)
            call(job, "aten::addmm", [[192], [256, 768], [768, 192]], HIDDEN_NS)
    assert "host.small-operators" not in found_in(job.built)


MANY = 40


def in_training(*, told: bool) -> Job:
    """Forty items, of whose join a recording tells no sizes, and what goes back through each of them."""
    job = Job()
    for _ in job.steps(6):
        for number in range(MANY):
            numbers = {"Input Dims": HIDDEN, "Input type": ["float"] * 3, "Sequence number": number}
            with job.inside("aten::addmm", **numbers):  # type: ignore[arg-type]
                job.python(HIDDEN_NS)
            call(job, "aten::cat", [[[1, 96], [1, 96]], []], 1_000)
        call(job, "aten::cat", [[], []], 10_000)
        call(job, "aten::mul", [[MANY, 192] if told else [7, 5], []], 1_000)
        for number in range(MANY):
            back = {"Sequence number": number, "Fwd thread id": 1}
            with job.inside("autograd::engine::evaluate_function: AddmmBackward0", thread=7, **back):
                call_on(job, "aten::mm", [[192, 64], [64, 768]], HIDDEN_NS)
        call(job, "aten::mm", [[2048, 512], [512, 512]], OTHER_NS)
    return job


def call_on(job: Job, name: str, sizes: list[Any], lasts: int) -> None:
    with job.inside(name, thread=7, **{"Input Dims": sizes, "Input type": ["float"] * len(sizes)}):
        job.python(lasts)


def test_what_goes_back_through_each_of_more_items_than_a_recording_tells_is_counted() -> None:
    """Torch's profiler has no sizes of lists of more than thirty tensors: what is given next has as many rows."""
    finding = found_in(in_training(told=True).built)["host.small-operators"]
    assert finding.gain is not None
    both = 2 * MANY * HIDDEN_NS
    needed = MANY * 2 * (2 * 64 * 192 * 768) / 8e10 * 1e9
    is_worth(finding, (both + OTHER_NS) / (needed + (1 / MANY + 0.1) * (both - needed) + OTHER_NS), within=0.1)
    assert "40 items" in finding.title


def test_a_join_of_which_nothing_tells_how_many_it_is_of_is_none() -> None:
    assert "items" not in str(found_in(in_training(told=False).built).get("host.small-operators"))
