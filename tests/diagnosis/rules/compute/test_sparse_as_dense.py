"""compute.sparse-as-dense: products with a matrix that to_dense or one_hot has just made, and no other products."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth

from whystall.diagnosis.run_facts import RunFacts
from whystall.run_folder.observations import Observations, SparseMatrix

PRODUCT_NS = 5_000_000
MAKING_NS = 1_000_000
OTHER_NS = 4_000_000
ENTRIES = 1_000
SIZE = [1_000, 1_000]
WIDE = [1_000, 64]


def call(job: Job, name: str, sizes: list[list[int]], lasts_ns: int, concrete: list[str] | None = None) -> None:
    recorded = {"Input Dims": sizes, "Input type": ["float"] * len(sizes)}
    if concrete is not None:
        recorded["Concrete Inputs"] = concrete
    with job.inside(name, **recorded):  # type: ignore[arg-type]
        job.python(lasts_ns)


def sparse(entries: int, operand: list[int] = SIZE) -> Job:
    """Eight steps of a matrix that is made dense, a product, and other work."""
    job = Job()
    for _ in job.steps(8):
        with job.inside("aten::to_dense", **{"Input Dims": [SIZE, [], []], "Input type": ["float", "", ""]}):  # type: ignore[arg-type]
            call(job, "aten::to", [[entries]], 1_000)
            job.python(MAKING_NS)
        call(job, "aten::mm", [operand, WIDE], PRODUCT_NS)
        call(job, "aten::relu", [WIDE], OTHER_NS)
    return job


def one_hot(operands: list[list[int]]) -> Job:
    job = Job()
    for _ in job.steps(8):
        call(job, "aten::one_hot", [[1_000], []], MAKING_NS, ["", "1000"])
        call(job, "aten::mm", operands, PRODUCT_NS)
        call(job, "aten::relu", [WIDE], OTHER_NS)
    return job


def test_a_sparse_matrix_that_is_made_dense_is_worth_its_making_and_most_of_its_products() -> None:
    finding = found_in(sparse(ENTRIES).built)["compute.sparse-as-dense"]
    is_worth(finding, (MAKING_NS + PRODUCT_NS + OTHER_NS) / (OTHER_NS + 20 * ENTRIES / 1e6 * PRODUCT_NS))


def test_products_with_one_hot_rows_are_named() -> None:
    assert "compute.sparse-as-dense" in found_in(one_hot([SIZE, WIDE]).built)


def test_a_matrix_whose_zeros_were_counted_is_named() -> None:
    job = sparse(ENTRIES, [900, 1_000])
    seen = RunFacts(observed={0: Observations(sparse=(SparseMatrix(900, 1_000, 0.001),))})
    finding = found_in(job.built, facts=seen)["compute.sparse-as-dense"]
    is_worth(finding, (MAKING_NS + PRODUCT_NS + OTHER_NS) / (MAKING_NS + OTHER_NS + 0.02 * PRODUCT_NS), within=0.2)


def of_graphs(*sizes: int) -> Job:
    """Each step multiplies with another graph's matrix."""
    job = Job()
    for step in job.steps(8):
        size = sizes[step % len(sizes)]
        call(job, "aten::mm", [[size, size], [size, 96]], PRODUCT_NS)
        call(job, "aten::relu", [WIDE], OTHER_NS)
    return job


def test_a_graph_of_another_size_in_each_batch_is_known_by_those_of_other_batches() -> None:
    seen = RunFacts(observed={0: Observations(sparse=(SparseMatrix(900, 900, 0.001), SparseMatrix(940, 940, 0.002)))})
    finding = found_in(of_graphs(950, 890, 1_010).built, facts=seen)["compute.sparse-as-dense"]
    is_worth(finding, (PRODUCT_NS + OTHER_NS) / (OTHER_NS + 0.04 * PRODUCT_NS), within=0.2)


@pytest.mark.parametrize(
    "seen",
    [
        (SparseMatrix(900, 900, 0.001),),  # one may be a constant of its own
        (SparseMatrix(300, 300, 0.001), SparseMatrix(320, 320, 0.001)),
    ],
)
def test_matrices_of_quite_another_size_are_not(seen: tuple[SparseMatrix, ...]) -> None:
    job = of_graphs(950, 890, 1_010)
    assert "compute.sparse-as-dense" not in found_in(job.built, facts=RunFacts(observed={0: Observations(sparse=seen)}))


@pytest.mark.parametrize(
    "job",
    [
        sparse(200_000),  # a fifth of the entries
        sparse(ENTRIES, [900, 1_000]),  # made dense for something else
        one_hot([WIDE[::-1], WIDE]),  # targets of a loss
    ],
)
def test_others_are_not(job: Job) -> None:
    assert "compute.sparse-as-dense" not in found_in(job.built)
