"""compute.redundant-work: rows that are looked up only to be added up, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")
ROWS, WIDE, BATCH, PLACES = 20_000, 96, 192, 120


def bagged(found: dict[str, Finding]) -> Finding | None:
    one = found.get("compute.redundant-work")
    return one if one is not None and "only to be added up" in one.title else None


def looked_up(way: str) -> Callable[[], object]:
    ids = torch.randint(ROWS, (BATCH, PLACES))
    mask = (ids > 50)[..., None].float()
    table = torch.nn.Embedding(ROWS, WIDE, sparse=way == "sparse")
    table.requires_grad_(way in {"trained", "sparse"})
    recurrent = torch.nn.GRU(WIDE, 8, batch_first=True)

    def trained() -> None:
        table.zero_grad()
        table(ids).mean(1).sum().backward()

    return {
        "mean": lambda: table(ids).mean(1),
        "sum": lambda: table(ids).sum(dim=-2),
        "masked": lambda: (table(ids) * mask).sum(1) / mask.sum(1),
        "trained": trained,
        "sparse": trained,
        "read": lambda: (recurrent(x := table(ids)), x.mean(1)),
        "gated": lambda: (table(ids) * table(ids.flip(1))).sum(1),
        "over the numbers": lambda: table(ids).mean(2),
        "few": lambda: table(ids[:8]).mean(1),
    }[way]


@pytest.mark.parametrize("way", ["mean", "sum", "masked", "trained"])
def test_rows_that_are_added_up_are_told(way: str, tmp_path: Path) -> None:
    finding = told_in(looked_up(way), tmp_path, bagged, worth=1.3)
    assert finding.remedy is not None
    assert "EmbeddingBag" in (finding.remedy.patch or "")


def test_going_back_to_sparse_gradients_is_not_counted(tmp_path: Path) -> None:
    finding = bagged(found_in(looked_up("sparse"), tmp_path))
    assert finding is None or "backward" not in str(finding.evidence)


@pytest.mark.parametrize("way", ["read", "gated", "over the numbers", "few"])
def test_others_are_not(way: str, tmp_path: Path) -> None:
    assert bagged(found_in(looked_up(way), tmp_path)) is None
