"""Rows that are made and of which few are picked, in recordings of torch's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")
ROWS, FEW = 20_000, 200


def picked(found: dict[str, Finding]) -> Finding | None:
    """What is said of rows that are picked."""
    return next((one for one in found.values() if "picked" in one.title), None)


@pytest.fixture
def table() -> Any:
    torch.manual_seed(0)
    return torch.randn(ROWS, 64)


def few() -> Any:
    return torch.randint(ROWS, (FEW,))


def shaped(rows: Any) -> Any:
    """Each row from itself alone."""
    return torch.cat([rows.sin(), rows / rows.norm(dim=-1, keepdim=True)], -1)


def fit(rows: Any) -> Any:
    return (rows * rows).mean()


@pytest.mark.parametrize("by", ["index", "index_select", "mask"])
def test_few_of_many_rows_that_are_made(by: str, table: Any, tmp_path: Path) -> None:
    def step() -> None:
        at = few()
        mask = torch.zeros(ROWS, dtype=torch.bool)
        mask[at] = True
        made = shaped(table)
        fit(made.index_select(0, at) if by == "index_select" else made[at if by == "index" else mask])

    assert f"{ROWS:,} rows are made" in told_in(step, tmp_path, picked).title


def test_rows_of_several_dimensions_and_a_backward_pass(table: Any, tmp_path: Path) -> None:
    weight = torch.randn(64, requires_grad=True)

    def step() -> None:
        made = (table.view(100, ROWS // 100, 64) * weight).tanh().reshape(-1, 64)
        fit(made[few()]).backward()
        weight.grad = None

    assert "picked" in told_in(step, tmp_path, picked).title


def test_rows_that_something_else_reads_are_needed(table: Any, tmp_path: Path) -> None:
    def step() -> None:
        made = shaped(table)
        fit(made[few()])
        made.mean(0)

    assert picked(found_in(step, tmp_path)) is None


@pytest.mark.parametrize("pause", [False, True])
def test_an_epoch_that_is_taken_batch_by_batch_is_read_whole(pause: bool, table: Any, tmp_path: Path) -> None:
    """Advantages that are normalised once and learned from batch by batch."""
    batches = torch.randperm(ROWS).split(ROWS // 10)
    weight = torch.randn(128, 64)

    def step() -> None:
        made = shaped(table)
        for at in batches:
            rows = made[at]
            fit(rows @ weight if pause else rows)

    assert picked(found_in(step, tmp_path)) is None


def test_an_epoch_of_single_numbers_is_read_whole(tmp_path: Path) -> None:
    """What works on a batch is so small that no operator lies between two picks."""
    batches, advantages = torch.randperm(ROWS).split(ROWS // 16), torch.randn(ROWS)

    def step() -> None:
        made = ((advantages - 0.1) / 1.7).tanh().exp()
        for at in batches:
            fit(made[at])

    assert picked(found_in(step, tmp_path)) is None


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_many_rows_of_those_that_are_made(share: float, table: Any, tmp_path: Path) -> None:
    def step() -> None:
        fit(shaped(table)[torch.randperm(ROWS)[: int(share * ROWS)]])

    assert picked(found_in(step, tmp_path)) is None


def test_a_table_that_is_only_read(table: Any, tmp_path: Path) -> None:
    """Work on as many numbers goes on beside it, on other rows."""
    weight = torch.randn(64, 512)

    def step() -> None:
        fit(table[few()])
        fit((table[:4096] @ weight).relu())

    assert picked(found_in(step, tmp_path)) is None


def test_what_is_made_of_all_rows_together_cannot_be_made_of_few(table: Any, tmp_path: Path) -> None:
    def step() -> None:
        fit(table.cumsum(0)[few()])
        fit(torch.softmax(table, 0)[few()])

    assert picked(found_in(step, tmp_path)) is None


def test_columns_that_are_picked_are_no_rows(table: Any, tmp_path: Path) -> None:
    def step() -> None:
        fit(shaped(table)[:, torch.tensor([1, 5, 9])])

    assert picked(found_in(step, tmp_path)) is None
