"""compute.redundant-work: cosine similarities with many vectors, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")
similar = torch.nn.functional.cosine_similarity


def of_cosines(found: dict[str, Finding]) -> Finding | None:
    """What is said of cosine similarities."""
    one = found.get("compute.redundant-work")
    return one if one is not None and "cosine similarity" in one.title else None


def ranked(way: str) -> Callable[[], object]:
    """A step that compares vectors."""
    torch.manual_seed(0)
    catalogue, query = torch.randn(20_000, 64), torch.randn(64)
    unit = torch.nn.functional.normalize(catalogue, dim=-1)
    ones, others = torch.randn(96, 64, requires_grad=True), torch.randn(96, 64)
    few = torch.randn(50, 64)
    return {
        "a catalogue": lambda: similar(query[None], catalogue),
        "all pairs": lambda: similar(ones[:, None], others[None], dim=-1).sum().backward(),
        "normalised before": lambda: unit @ torch.nn.functional.normalize(query, dim=-1),
        "a partner for each": lambda: similar(catalogue, unit),
        "few": lambda: similar(query[None], few),
    }[way]


@pytest.mark.parametrize(("way", "pairs"), [("a catalogue", 20_000), ("all pairs", 96 * 96)])
def test_many_pairs_are_worth_what_a_product_leaves(way: str, pairs: int, tmp_path: Path) -> None:
    finding = told_in(ranked(way), tmp_path, of_cosines, worth=2)
    assert finding.evidence[0].value == pairs
    assert finding.gain is not None
    assert finding.gain.expected > 2
    assert finding.remedy is not None
    assert "normalize(query, dim=-1)" in (finding.remedy.patch or "")


@pytest.mark.parametrize("way", ["normalised before", "a partner for each", "few"])
def test_others_are_none(way: str, tmp_path: Path) -> None:
    assert of_cosines(found_in(ranked(way), tmp_path)) is None
