"""compute.dense-embedding: tables of which a batch reads few rows; those that are tied or small are left alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnosis.cases import case_of, found_in, run
from tests.diagnosis.jobs import H100, Job, is_worth, shaped

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.run_folder.observations import MadeAt, MadeTable, Observations

ROWS, SIZE, READ = 100_000, 32, 500
EACH_MS = (150 + 7 * SIZE) / 1e6
"""What SparseAdam takes for each row of a sparse gradient: `benchmarks/bench_sparse_gradients.py`."""
TABLE = [ROWS, SIZE]
STEP_NS = 4_000_000


def backward(rows: int, size: int, read: int) -> dict[str, Any]:
    """What torch records of an embedding's backward call."""
    return {
        "Input Dims": [[read, size], [read], [], [], []],
        "Input type": ["float", "long int", "Scalar", "Scalar", "Scalar"],
        "Concrete Inputs": ["", "", str(rows), "-1", "False"],
    }


def training(
    *, rows: int = ROWS, read: int = READ, tied: bool = False, on_device: bool = False, lists: bool = False
) -> Job:
    """Eight steps: the gradient, an optimizer that goes over the table, and as much work on other tensors."""
    job = Job(H100 if on_device else None)
    table = [rows, SIZE]
    head = shaped([READ, SIZE], table[::-1]) if tied else shaped([READ, SIZE], [SIZE, 256])
    update = {"Input Dims": [[table, [16, 16]], [table, [16, 16]]]} if lists else shaped(table, table)
    operators: tuple[tuple[str, dict[str, Any]], ...] = (
        ("aten::embedding", shaped(table, [read])),
        ("aten::mm", head),
        ("aten::embedding_dense_backward", backward(rows, SIZE, read)),
        ("aten::_fused_adam_" if lists else "aten::addcdiv_", update),
    )
    for _ in job.steps(8):
        for name, recorded in operators:
            if on_device:
                job.operator(name, "kernel", STEP_NS, **recorded)
            else:
                with job.inside(name, **recorded):
                    job.python(STEP_NS)
        if on_device:
            job.wait()
    return job


def test_the_line_that_makes_a_table_is_named_first() -> None:
    made = tuple(
        MadeTable(rows, SIZE, MadeAt("model.py", line, "__init__", "self.items = nn.Embedding(n, 32)"))
        for rows, line in ((ROWS + 1, 24), (ROWS, 25), (ROWS, 25))
    )
    case = case_of(training().built, facts=RunFacts(observed={0: Observations(tables=made)}), runs=[run()])
    found = {one.id: one for one in diagnose(case, RULES).findings}["compute.dense-embedding"]
    assert [(one.file, one.line) for one in found.code if one.file == "model.py"] == [("model.py", 25)]
    assert found.code[0].line == 25


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("lists", [True, False])
def test_the_rows_that_no_batch_reads_are_spared(on_device: bool, lists: bool) -> None:
    """The gradient and the optimizer's step are half of a step, and 500 rows of 100,000 are read.

    On a CPU a sparse gradient takes 0.3 ms, and with SparseAdam 0.9 us for each of its rows.
    """
    finding = found_in(training(on_device=on_device, lists=lists).built)["compute.dense-embedding"]
    is_worth(finding, 2.0 if on_device else 16 / (8 + 0.3 + 500 * EACH_MS))
    assert "500 of 100,000" in finding.title


def test_the_sparse_gradient_of_adagrad_costs_two_thirds_as_much() -> None:
    job = training()
    with job.marked("Optimizer.step#Adagrad.step"):
        job.python(1)
    is_worth(found_in(job.built)["compute.dense-embedding"], 16 / (8 + 0.3 + 500 * EACH_MS * 2 / 3), within=0.005)


@pytest.mark.parametrize(
    ("momentum", "sparse_ms"), [(False, 0.1 + 6000 * 0.00011), (True, 0.3 + 6000 * EACH_MS * 2 / 3)]
)
def test_sgd_adds_the_rows_of_a_sparse_gradient_as_they_come(*, momentum: bool, sparse_ms: float) -> None:
    """6,000 rows of 300,000: with the price of Adagrad's a job that was 2.3 times as fast without was told nothing."""
    job = training(rows=300_000, read=6_000)
    with (
        job.marked("Optimizer.step#SGD.step"),
        job.inside("aten::mul_" if momentum else "aten::relu", **shaped([300_000, SIZE], [])),
    ):
        job.python(1)
    is_worth(found_in(job.built)["compute.dense-embedding"], 16 / (8 + sparse_ms), within=0.03)


@pytest.mark.parametrize("within", ["Optimizer.zero_grad#Adam.zero_grad", "something else"])
def test_gradients_that_are_given_back_to_the_system_are_not_any_more(within: str) -> None:
    """Megabytes that are dropped in zero_grad take a millisecond; what is done elsewhere stays."""
    job = Job()
    for _ in job.steps(8):
        with job.inside("aten::mm", **shaped([READ, SIZE], [SIZE, 256])):
            job.python(2 * STEP_NS)
        with job.inside("aten::embedding_dense_backward", **backward(ROWS, SIZE, READ)):
            job.python(STEP_NS)
        with job.inside("aten::addcdiv_", **shaped(TABLE, TABLE)):
            job.python(STEP_NS)
        with job.marked(within):
            job.python(STEP_NS)
    left = 8 + 0.3 + 500 * EACH_MS + (4 if within == "something else" else 0)
    is_worth(found_in(job.built)["compute.dense-embedding"], 20 / left, within=0.02)


@pytest.mark.parametrize(
    "options",
    [
        {"read": 20_000},  # every fifth row
        {"rows": 10_000, "read": 50},  # a table that a cache holds
        {"tied": True},  # its gradient is dense, since the output layer takes it, too
    ],
)
def test_other_tables_are_left_alone(options: dict[str, Any]) -> None:
    assert "compute.dense-embedding" not in found_in(training(**options).built)


@pytest.mark.parametrize("concrete", [[], ["", "", "many"], ["", "", "-5"], None])
def test_what_is_recorded_oddly_says_nothing(concrete: list[str] | None) -> None:
    job = Job()
    odd = {**backward(ROWS, SIZE, READ), "Concrete Inputs": concrete}
    for _ in job.steps(8):
        with job.inside("aten::embedding_dense_backward", **odd):
            job.python(STEP_NS)
        with job.inside("aten::addcdiv_", **shaped(TABLE, TABLE)):
            job.python(STEP_NS)
    assert "compute.dense-embedding" not in found_in(job.built)


def test_a_table_goes_before_the_fused_optimizer_that_is_worth_hardly_more() -> None:
    """Fusing the update is of use in nearly any job; what leaves it hardly anything to do says more of this one."""
    job = Job(None)
    of_table, of_head = shaped(TABLE, TABLE), shaped([SIZE, 256], [SIZE, 256])
    for _ in job.steps(8):
        with job.inside("aten::mm", **shaped([READ, SIZE], [SIZE, 256])):
            job.python(3 * STEP_NS)
        with job.inside("aten::embedding_dense_backward", **backward(ROWS, SIZE, READ)):
            job.python(STEP_NS // 4)
        begin = job.at
        for place in range(100):
            with job.inside("aten::addcdiv_", **(of_table if place % 2 else of_head)):
                job.python(STEP_NS // (60 if place % 2 else 80))
        job.built.annotation("Optimizer.step#Adam.step", at=begin, lasts=job.at - begin)
    found = found_in(job.built)
    gains = {cause: finding.gain.expected for cause, finding in found.items() if finding.gain is not None}
    assert (
        gains["compute.dense-embedding"] < gains["compute.unfused-optimizer"] < 1.1 * gains["compute.dense-embedding"]
    )
    assert next(iter(found)) == "compute.dense-embedding"
