"""Statistics that hooks read in each step are logging; what training computes, and what chooses, is not."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth

LAYER_NS: Final = 4_000_000
Operators = tuple[str, ...]


def training(*hook: str, differentiated: Operators = (), fetch: Operators = ()) -> Job:
    """Eight steps of a layer, a hook's operators of 2 ms each, another layer, and the backward pass of both.

    ``differentiated`` operators follow the second layer and have a backward pass; ``fetch`` is done by a loader.
    """
    job, number = Job(), 0

    def works(name: str, lasts: int, **more: Any) -> None:
        with job.inside(name, **more):
            job.python(lasts)

    for _ in job.steps(8):
        if fetch:
            with job.marked("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                for name in fetch:
                    works(name, 2_000_000)
        numbers = []
        for _ in range(2):
            number += 1
            numbers.append(number)
            works("aten::addmm", LAYER_NS, **{"Sequence number": number, "Fwd thread id": 0})
            for name in hook:  # which bear the number of what comes next
                works(name, 2_000_000, **{"Sequence number": number + 1, "Fwd thread id": 0})
        for name in differentiated:
            number += 1
            numbers.append(number)
            works(name, 2_000_000, **{"Sequence number": number, "Fwd thread id": 0})
        number += 1  # that of the loss
        works("aten::mse_loss", 1_000, **{"Sequence number": number, "Fwd thread id": 0})
        works("aten::item", 1_000)
        for one in [number, *reversed(numbers)]:
            works(
                "autograd::engine::evaluate_function: AddmmBackward0",
                2_000_000,
                **{"Sequence number": one, "Fwd thread id": 1},
            )
    return job


def test_a_hook_that_reads_statistics_is_worth_its_time() -> None:
    """Two hooks of 8 ms in a step of 30.002 ms."""
    finding = found_in(training("aten::detach", "aten::std", "aten::histc", "aten::item").built)["episodic.logging"]
    is_worth(finding, 30.002 / 14.002)
    assert finding.remedy is not None
    assert "every N steps" in finding.remedy.text


@pytest.mark.parametrize(
    "job",
    [
        training("aten::std", "aten::histc"),  # that nobody reads
        training("aten::mm", "aten::softmax", "aten::multinomial", "aten::item"),  # an action that is chosen
        training(differentiated=("aten::sub", "aten::pow", "aten::mean", "aten::mean")),  # a loss that is read
        training(fetch=("aten::max", "aten::sum", "aten::item")),
    ],
)
def test_other_work_is_not(job: Job) -> None:
    assert "episodic.logging" not in found_in(job.built)


@pytest.mark.parametrize(("what", "told"), [("aten::histc", True), ("aten::max", False), ("aten::bincount", False)])
def test_a_histogram_that_becomes_a_list_is_read(what: str, *, told: bool) -> None:
    """Whoever lists the largest scores may go on with them, and counts of labels weigh classes."""
    finding = found_in(training("aten::detach", what, "aten::resolve_conj", "aten::resolve_neg").built)
    assert ("episodic.logging" in finding) is told
