"""compute.indexed-gradients: in recordings of torch's own rows that are picked by an index fire it, others do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.rules.compute import indexed_gradients

torch = pytest.importorskip("torch")
CAUSE: Final = "compute.indexed-gradients"


def picked(way: str) -> Callable[[], object]:
    """A step that picks rows of what it learns."""
    torch.manual_seed(0)
    nodes, of_edges = torch.nn.Parameter(torch.randn(2_000, 32)), torch.randint(2_000, (40_000,))
    of_words, few = of_edges.view(200, 200), of_edges[:300]
    mask, constant = torch.rand(2_000) < 0.6, torch.randn(2_000, 32)
    ways: dict[str, Callable[[], Any]] = {
        "edges": lambda: nodes[of_edges],
        "words of sentences": lambda: nodes[of_words],
        "a mask": lambda: nodes[mask],
        "selected": lambda: nodes.index_select(0, of_edges),
        "an embedding": lambda: torch.nn.functional.embedding(of_words, nodes),
        "few": lambda: nodes[few],
        "numbers": lambda: nodes[of_edges, of_edges % 32],
        "of what nobody learns": lambda: constant[of_edges] * nodes.sum(),
    }

    def step() -> None:
        nodes.grad = None
        ways[way]().square().sum().backward()

    return step


@pytest.mark.parametrize(("way", "rows"), [("edges", 40_000), ("words of sentences", 40_000), ("a mask", None)])
def test_rows_that_are_picked_by_an_index_are_worth_what_selecting_them_leaves(
    way: str, rows: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes here: threads that share a core do not get into each other's way."""
    monkeypatch.setattr(indexed_gradients, "_SLOW_NS", 0.0)
    finding = told_in(picked(way), tmp_path, lambda found: found.get(CAUSE))
    assert finding.evidence[0].value == rows or rows is None
    assert finding.evidence[1].value == 32
    assert finding.remedy is not None
    assert "index_select(0, source)" in (finding.remedy.patch or "")


def test_additions_that_are_quick_for_their_number_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_gradients, "_SLOW_NS", 1e6)
    assert CAUSE not in found_in(picked("edges"), tmp_path)


@pytest.mark.parametrize("way", ["selected", "an embedding", "few", "numbers", "of what nobody learns"])
def test_others_are_none(way: str, tmp_path: Path) -> None:
    assert CAUSE not in found_in(picked(way), tmp_path)
