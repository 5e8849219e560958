"""compute.redundant-work: matrices that a product copies for each of a batch, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")


def copied(found: dict[str, Finding]) -> Finding | None:
    one = found.get("compute.redundant-work")
    return one if one is not None and "are copied" in one.title else None


def products(way: str, *, learns: bool) -> Callable[[], object]:
    """A step with a product that is batched in some way."""
    torch.manual_seed(0)
    x, weights = torch.randn(200, 6, 48), torch.randn(6, 48, 40, requires_grad=learns)
    heads, keys = torch.randn(32, 4, 160, 64), torch.randn(4, 64, 64, requires_grad=learns)
    like, one = torch.randn(32, 4, 64, 160, requires_grad=learns), torch.randn(1, 48, 40, requires_grad=learns)
    places, layer = torch.randn(4, 256, 12, 96), torch.randn(64, 96, requires_grad=learns)
    forward: Callable[[], object] = {
        "a matrix for each of six": lambda: x[:, :, None] @ weights,
        "on the left": lambda: weights.mT @ x[..., None],
        "each with each": lambda: x[:, None] @ weights[None],
        "by einsum": lambda: torch.einsum("bed,edh->beh", x, weights),
        "by many rows": lambda: heads @ keys,
        "as many matrices": lambda: heads @ like,
        "one matrix for all": lambda: x @ one[0],
        "a layer on four dimensions": lambda: torch.nn.functional.linear(places, layer),
        "places that are no rows": lambda: places.transpose(0, 2) @ layer.mT,
    }[way]

    def step() -> None:
        with torch.set_grad_enabled(learns):
            out = forward()
        if learns:
            out.sum().backward()  # type: ignore[attr-defined]

    return step


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("way", ["a matrix for each of six", "on the left", "each with each"])
def test_matrices_that_are_copied_for_a_batch_are_told(way: str, *, learns: bool, tmp_path: Path) -> None:
    finding = told_in(products(way, learns=learns), tmp_path, copied, worth=1.5)
    assert "6 matrices are copied 200 times" in finding.title
    assert finding.remedy is not None
    assert "torch.einsum" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "way",
    [
        "by einsum",
        "by many rows",
        "as many matrices",
        "one matrix for all",
        "a layer on four dimensions",
        "places that are no rows",
    ],
)
def test_others_are_none(way: str, tmp_path: Path) -> None:
    assert copied(found_in(products(way, learns=True), tmp_path)) is None
