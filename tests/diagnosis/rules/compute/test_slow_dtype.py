"""compute.slow-dtype: products in half precision far below the rate of single precision fire it; others do not."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth

MATRIX = [256, 256]
FLOPS = 2 * 256**3
AT_SINGLE_NS = int(FLOPS / 80)  # 80 GFLOP/s


def products(dtype: str, lasts_ns: int, sizes: list[int] = MATRIX) -> Job:
    """Eight steps of a product of tensors of a type and as much of other work."""
    job = Job()
    for _ in job.steps(8):
        with job.inside("aten::mm", **{"Input Dims": [sizes, sizes], "Input type": [dtype, dtype]}):  # type: ignore[arg-type]
            job.python(lasts_ns)
        with job.inside("aten::mm", **{"Input Dims": [MATRIX, MATRIX], "Input type": ["float", "float"]}):  # type: ignore[arg-type]
            job.python(lasts_ns)
    return job


@pytest.mark.parametrize("dtype", ["c10::Half", "c10::BFloat16"])
def test_products_a_hundred_times_below_the_rate_take_half_of_the_step(dtype: str) -> None:
    finding = found_in(products(dtype, 100 * AT_SINGLE_NS).built)["compute.slow-dtype"]
    is_worth(finding, 2 / 1.01)


@pytest.mark.parametrize(
    ("dtype", "lasts_ns", "sizes"),
    [
        ("c10::BFloat16", 3 * AT_SINGLE_NS, MATRIX),  # the processor has instructions for it
        ("float", 100 * AT_SINGLE_NS, MATRIX),  # slow for another reason
        ("double", 100 * AT_SINGLE_NS, MATRIX),
        ("c10::Half", 100 * AT_SINGLE_NS, [16, 16]),  # a call, and hardly a product
    ],
)
def test_others_are_not(dtype: str, lasts_ns: int, sizes: list[int]) -> None:
    assert "compute.slow-dtype" not in found_in(products(dtype, lasts_ns, sizes).built)
