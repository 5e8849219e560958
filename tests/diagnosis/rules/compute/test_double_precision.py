"""compute.double-precision: tensors of type double fire it; numbers by themselves, casts and floats do not."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth

PRODUCT_NS = 5_000_000
MATRIX = [512, 512]


def products(types: list[str], sizes: list[list[int]]) -> Job:
    """Eight steps of which half is a product of tensors of given types."""
    job = Job()
    for _ in job.steps(8):
        with job.inside("aten::mm", **{"Input Dims": [MATRIX, MATRIX], "Input type": ["float", "float"]}):  # type: ignore[arg-type]
            job.python(PRODUCT_NS)
        with job.inside("aten::mm", **{"Input Dims": sizes, "Input type": types}):  # type: ignore[arg-type]
            job.python(PRODUCT_NS)
    return job


def test_products_in_double_are_worth_half_of_their_time() -> None:
    finding = found_in(products(["double", "double"], [MATRIX, MATRIX]).built)["compute.double-precision"]
    is_worth(finding, 4 / 3)


@pytest.mark.parametrize(
    ("types", "sizes"),
    [
        (["float", "float"], [MATRIX, MATRIX]),
        (["float", "double"], [MATRIX, []]),  # a number
        (["double", "float"], [MATRIX, MATRIX]),  # a cast
    ],
)
def test_others_are_not(types: list[str], sizes: list[list[int]]) -> None:
    assert "compute.double-precision" not in found_in(products(types, sizes).built)


def test_convolutions_on_a_cpu_gain_more_than_half() -> None:
    """They take 0.21 to 0.64 of the time in single precision where they were measured (thresholds of the cause)."""
    job = Job()
    for _ in job.steps(8):
        for kind in ("float", "double"):
            sizes = [[8, 64, 32, 32], [64, 64, 3, 3]]
            with job.inside("aten::convolution", **{"Input Dims": sizes, "Input type": [kind, kind]}):  # type: ignore[arg-type]
                job.python(PRODUCT_NS)
    finding = found_in(job.built)["compute.double-precision"]
    assert finding.gain is not None
    assert finding.gain.floor <= 2 / 1.64
    assert finding.gain.expected >= 2 / 1.48
    assert finding.gain.ceiling >= 2 / 1.21


@pytest.mark.parametrize(("lasts", "fires"), [(PRODUCT_NS, False), (PRODUCT_NS // 20, True)])
def test_where_matrices_are_factored_the_precision_is_wanted(lasts: int, fires: bool) -> None:
    job = Job()
    doubles = {"Input Dims": [MATRIX, MATRIX], "Input type": ["double", "double"]}
    for _ in job.steps(8):
        with job.inside("aten::mm", **doubles):  # type: ignore[arg-type]
            job.python(PRODUCT_NS)
        with job.inside("aten::linalg_cholesky_ex", **doubles):  # type: ignore[arg-type]
            job.python(lasts)
    assert ("compute.double-precision" in found_in(job.built)) == fires
