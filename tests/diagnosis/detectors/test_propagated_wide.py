"""compute.redundant-work: a square matrix that mixes features before a layer makes them few, in torch's recordings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")


def of_order(found: dict[str, Finding]) -> Finding | None:
    """What is said of the order."""
    one = found.get("compute.redundant-work")
    return one if one is not None and "are mixed before" in one.title else None


def worked(way: str) -> Callable[[], object]:
    """A step of a graph convolution."""
    torch.manual_seed(0)
    dense = (torch.rand(1500, 1500) < 0.02).float()
    adjacency = dense if way == "dense" else dense.to_sparse_csr()
    given = torch.randn(1500, 256)
    before = torch.nn.Linear(256, 256)
    layer = torch.nn.Linear(256, 512 if way == "it makes more" else 16)
    weight = torch.nn.Parameter(torch.randn(256, 256))

    def forward() -> torch.Tensor:  # type: ignore[name-defined]
        if way == "a batch as large as a layer":
            return layer(before(given[:256]))
        if way == "weights of one's own":
            return layer(given[:256] @ weight)
        x = before(given)
        if way == "projected first":
            return adjacency @ layer(x)
        mixed = adjacency @ x
        if way == "something between":
            mixed = mixed.relu()
        if way == "both are read":
            mixed = mixed + x
        return layer(mixed)

    return lambda: forward().square().mean().backward()


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("way", ["sparse", "dense"])
def test_few_columns_are_mixed_where_the_layer_comes_first(way: str, tmp_path: Path) -> None:
    finding = told_in(worked(way), tmp_path, of_order, worth=1.3)
    assert [one.value for one in finding.evidence[:3]] == [1500, 256, 16]
    assert finding.remedy is not None
    assert "adj @ self.lin(x)" in (finding.remedy.patch or "")


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    "way",
    [
        "projected first",
        "something between",
        "both are read",
        "it makes more",
        "a batch as large as a layer",
        "weights of one's own",
    ],
)
def test_others_are_none(way: str, tmp_path: Path) -> None:
    assert of_order(found_in(worked(way), tmp_path)) is None
