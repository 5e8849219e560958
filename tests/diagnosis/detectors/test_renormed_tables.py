"""host.small-operators: rows of a table that are brought to their norm one by one, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")


def renormed(found: dict[str, Finding]) -> Finding | None:
    one = found.get("host.small-operators")
    return one if one is not None and "max_norm" in one.title else None


def looked_up(rows: int, norm: float | None) -> Callable[[], object]:
    table = torch.nn.Embedding(5_000, 32, max_norm=norm)
    weight = torch.randn(32, 32)

    def step() -> object:
        table.weight.data.mul_(1.5)  # as an optimizer's step makes rows longer
        return table(torch.randint(5_000, (rows,))) @ weight

    return step


def test_rows_that_are_brought_to_their_norm_one_by_one_are_told(tmp_path: Path) -> None:
    finding = told_in(looked_up(2_000, 1.0), tmp_path, renormed, worth=2.0)
    assert finding.remedy is not None
    assert "max_norm" in (finding.remedy.patch or "")


@pytest.mark.parametrize(("rows", "norm"), [(2_000, None), (16, 1.0)])
def test_others_are_not(rows: int, norm: float | None, tmp_path: Path) -> None:
    assert renormed(found_in(looked_up(rows, norm), tmp_path)) is None
