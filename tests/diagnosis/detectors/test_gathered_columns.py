"""compute.layout-conversion: columns that are picked from a large matrix of rows, in recordings of torch's own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

torch = pytest.importorskip("torch")
ROWS, COLUMNS, PICKED = 512, 16_384, 256


@pytest.mark.parametrize("by", ["index", "index_select"])
def test_columns_are_worth_what_rows_leave(by: str, tmp_path: Path) -> None:
    matrix = torch.randn(ROWS, COLUMNS)
    drawn = itertools.cycle(torch.randperm(COLUMNS).split(PICKED))  # the same ones would stay in caches

    def step() -> object:  # nothing else, which would last as long as others on the cores have it last
        return [matrix[:, next(drawn)] if by == "index" else matrix.index_select(1, next(drawn)) for _ in range(4)]

    finding = told_in(step, tmp_path, lambda found: found.get("compute.layout-conversion"), worth=1.5)
    assert "256 of 16,384 columns" in finding.title
    assert finding.gain is not None
    assert finding.gain.expected > 1.5
    assert finding.remedy is not None
    assert "values.t().contiguous()" in (finding.remedy.patch or "")


@pytest.mark.parametrize("turned", [True, False])
def test_windows_across_rows_are_worth_what_windows_along_them_leave(tmp_path: Path, *, turned: bool) -> None:
    table, offsets = torch.randn(500, 30_000), torch.arange(200)

    def step() -> object:
        article, start = torch.randint(30_000, (1000, 1)), torch.randint(300, (1000, 1))
        return table.t()[article, start + offsets] if turned else table[start + offsets, article]

    finding = told_in(step, tmp_path, lambda found: found.get("compute.layout-conversion"), worth=1.5)
    assert "1,000 windows of 200 numbers each" in finding.title


def test_windows_along_rows_are_none(tmp_path: Path) -> None:
    table, offsets = torch.randn(30_000, 500), torch.arange(200)

    def step() -> object:
        article, start = torch.randint(30_000, (1000, 1)), torch.randint(300, (1000, 1))
        return table[article, start + offsets]

    assert "compute.layout-conversion" not in found_in(step, tmp_path)


@pytest.mark.parametrize("what", ["rows", "small", "turned", "neighbours", "most"])
def test_other_picks_are_none(what: str, tmp_path: Path) -> None:
    matrix = torch.randn(ROWS, 1024 if what == "small" else COLUMNS)
    turned = matrix.t().contiguous().t()

    def step() -> object:
        numbers = torch.randperm(matrix.shape[1])[:PICKED]
        if what == "rows":
            return matrix[torch.randint(ROWS, (PICKED,))].sum()
        if what == "turned":
            return turned[:, numbers].sum()
        if what == "neighbours":
            return matrix[:, 100 : 100 + PICKED].contiguous().sum()
        if what == "most":
            return matrix[:, torch.randperm(COLUMNS)[: COLUMNS // 2]].sum()
        return matrix[:, numbers].sum()

    assert "compute.layout-conversion" not in found_in(step, tmp_path)
