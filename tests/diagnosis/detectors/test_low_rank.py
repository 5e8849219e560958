"""compute.redundant-work: whole factors of matrices of low rank and a diagonal, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")
BATCH, ROWS, RANK = 8, 128, 6


def of_low_rank(found: dict[str, Finding]) -> Finding | None:
    """What is said of factors of whole matrices."""
    one = found.get("compute.redundant-work")
    return one if one is not None and "factored whole" in one.title else None


def density(way: str) -> Callable[[], object]:
    """A step that makes a matrix, and its factor."""
    torch.manual_seed(0)
    rank = ROWS // 2 if way == "of half its rank" else RANK
    weight = torch.randn(BATCH, ROWS, rank, requires_grad=True)
    diagonal = torch.rand(BATCH, ROWS) + 0.5
    given, running = torch.randn(BATCH, ROWS), torch.eye(ROWS).repeat(BATCH, 1, 1)
    full = running + 0.1 * torch.ones(ROWS, ROWS)

    def step() -> None:
        if way == "given in parts":
            law = torch.distributions.LowRankMultivariateNormal(torch.zeros(ROWS), weight, diagonal)
        else:
            whole = weight @ weight.mT
            if way == "a running mean":
                running.mul_(0.9).add_(whole.detach(), alpha=0.1)
                whole = running + 0.0 * whole
            if way == "a running mean by lerp":
                whole = running.lerp_(whole.detach(), 0.1).clone()
            if way == "a full matrix added":
                whole = whole + full
            if way == "a kernel":
                whole = torch.exp(-(whole - whole.amax()).abs() / 50)
            law = torch.distributions.MultivariateNormal(torch.zeros(ROWS), whole + torch.diag_embed(diagonal + rank))
        (law.log_prob(given).mean() + 0.0 * weight.sum()).backward()

    return step


def test_a_covariance_of_low_rank_is_told_with_what_its_parts_leave(tmp_path: Path) -> None:
    finding = told_in(density("whole"), tmp_path, of_low_rank, worth=1.5)
    assert "128 rows" in finding.title
    assert "rank 6" in finding.title
    assert finding.gain is not None
    assert finding.gain.expected > 1.5
    assert finding.remedy is not None
    assert "LowRankMultivariateNormal" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "way",
    [
        "given in parts",
        "a kernel",
        "of half its rank",
        "a running mean",
        "a running mean by lerp",
        "a full matrix added",
    ],
)
def test_others_are_none(way: str, tmp_path: Path) -> None:
    assert of_low_rank(found_in(density(way), tmp_path)) is None
