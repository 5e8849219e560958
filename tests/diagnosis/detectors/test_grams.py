"""compute.redundant-work: iterations over X X^T of a matrix with more rows than columns."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth, shaped

NETWORK_NS, PRODUCT_NS = 20_000_000, 2_000_000
M, N = 512, 128
GRAM, SQUARE, BACK = ([M, N], [N, M]), ([M, M], [M, M]), ([M, M], [M, N])


def iterated(*products: tuple[list[int], list[int]], times: int = 5) -> Job:
    """Eight steps of a network, and an iteration of some products of 2 ms each."""
    made = Job()
    for _ in made.steps(8):
        with made.inside("aten::mm", **shaped([1024, 256], [256, 300])):
            made.python(NETWORK_NS)
        for _ in range(times):
            for one, other in products:
                if one == other[::-1]:
                    with made.inside("aten::t", **shaped(one)):
                        pass
                with made.inside("aten::mm", **shaped(one, other)):
                    made.python(PRODUCT_NS)
    return made


def test_an_iteration_by_rows_is_worth_what_one_by_columns_leaves() -> None:
    finding = found_in(iterated(GRAM, SQUARE, BACK).built)["compute.redundant-work"]
    taken: Final = 15 * PRODUCT_NS
    # each kind of product takes a third of it: two of them leave N / M of their work, the third its cube
    left = (2 * N / M + (N / M) ** 3) / 3
    # small products are computed less well: the square root of three times what their arithmetic says, as expected
    is_worth(finding, (NETWORK_NS + taken) / (NETWORK_NS + 3**0.5 * left * taken), within=0.02)
    assert "512 rows and 128 columns" in finding.title
    assert finding.remedy is not None
    assert ".mT" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "products",
    [
        pytest.param((([N, M], [M, N]), ([N, N], [N, N]), ([N, N], [N, M])), id="a wide matrix"),
        pytest.param((([M, 480], [480, M]), SQUARE, ([M, M], [M, 480])), id="nearly square"),
        pytest.param((GRAM, SQUARE), id="similarities"),
        pytest.param((GRAM, SQUARE, ([M, M], [M, 64])), id="of another matrix"),
    ],
)
def test_other_products_are_none(products: tuple[tuple[list[int], list[int]], ...]) -> None:
    assert "compute.redundant-work" not in found_in(iterated(*products).built)


def test_attention_is_none() -> None:
    made = Job()
    for _ in made.steps(8):
        for name, dims in (("aten::mm", GRAM), ("aten::softmax", ([M, M],)), ("aten::mm", BACK)):
            with made.inside(name, **shaped(*dims)):
                made.python(PRODUCT_NS)
    assert "compute.redundant-work" not in found_in(made.built)
