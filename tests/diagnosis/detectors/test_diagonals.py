"""compute.redundant-work: matrices that were made of their diagonals and are factored as full ones."""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth, shaped

ROWS: Final = [128, 12, 12]
NETWORK_NS, FACTOR_NS, SOLVE_NS, CHECK_NS = 20_000_000, 6_000_000, 2_000_000, 4_000_000


def policy(
    *between: tuple[str, list[list[int]]], maker: str = "aten::diag_embed", numbers: tuple[int, ...] = (128, 12)
) -> Job:
    """Eight steps of a network, a Gaussian whose covariance is checked and factored, and what is solved with it."""
    made = Job()
    for _ in made.steps(8):
        with made.inside("aten::mm", **shaped([512, 512], [512, 512])):
            made.python(NETWORK_NS)
        with made.inside(maker, **shaped(list(numbers))):
            made.python(20_000)
        for name, dims in between:
            with made.inside(name, **shaped(*dims)):
                made.python(20_000)
        for name, lasts in (
            ("aten::isclose", CHECK_NS),
            ("aten::linalg_cholesky_ex", FACTOR_NS),
            ("aten::linalg_solve_triangular", SOLVE_NS),
        ):
            with made.inside(name, **shaped(ROWS, ROWS if name == "aten::isclose" else [128, 12, 1])):
                made.python(lasts)
        with made.inside("aten::add", **shaped(ROWS, ROWS)):  # of the matrix before: the next is made anew
            made.python(20_000)
    return made


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(policy(), id="at once"),
        pytest.param(policy(("aten::expand", [ROWS]), ("aten::mT", [ROWS])), id="views of it"),
    ],
)
def test_what_is_done_with_diagonal_matrices_is_worth_most_of_it(job: Job) -> None:
    finding = found_in(job.built)["compute.redundant-work"]
    wasted = CHECK_NS + FACTOR_NS + SOLVE_NS
    is_worth(finding, (NETWORK_NS + wasted) / (NETWORK_NS + 0.2 * wasted), within=0.05)
    assert "diagonal matrices of 12 rows" in finding.title
    assert finding.remedy is not None
    assert "Independent" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(policy(("aten::add", [ROWS, ROWS])), id="something is added"),
        pytest.param(policy(("aten::bmm", [ROWS, ROWS])), id="it is multiplied"),
        pytest.param(policy(maker="aten::matmul"), id="made otherwise"),
        pytest.param(policy(numbers=(64, 12)), id="of another batch"),
        pytest.param(policy(numbers=(128, 3)), id="of other rows"),
    ],
)
def test_full_matrices_are_none(job: Job) -> None:
    assert "compute.redundant-work" not in found_in(job.built)
