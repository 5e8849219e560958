"""host.small-operators: small tables of embeddings for each column, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")
COLUMNS, ROWS, WIDE, BATCH = 48, 20, 8, 256


def tabular(columns: int, *, one: bool = False, learns: bool = True, rows: int = ROWS) -> Callable[[], object]:
    """A step of a small network on columns of numbers, by a table for each or by one for all."""
    torch.manual_seed(0)
    codes = torch.randint(rows, (BATCH, columns))
    start = torch.arange(columns) * rows
    tables = torch.nn.ModuleList(torch.nn.Embedding(rows, WIDE) for _ in range(1 if one else columns))
    whole = torch.nn.Embedding(rows * columns, WIDE) if one else None
    net = torch.nn.Sequential(torch.nn.Linear(columns * WIDE, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    kept = [*net.parameters(), *(whole if whole is not None else tables).parameters()]
    optimizer = torch.optim.Adam(kept, lr=1e-3, foreach=False)

    def step() -> None:
        with torch.set_grad_enabled(learns):
            if whole is not None:
                embedded = whole(codes + start)
            else:
                embedded = torch.stack([table(codes[:, at]) for at, table in enumerate(tables)], 1)
            out = net(embedded.flatten(1))
        if learns:
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()

    return step


def small_tables(found: dict[str, Finding]) -> Finding | None:
    """What is told of small tables, where it has a gain."""
    one = found.get("host.small-operators")
    told = one is not None and "small tables" in one.title and one.attributed_ns_per_step is not None
    return one if one is not None and told and one.gain is not None and one.gain.step_ns is not None else None


def test_a_table_for_each_column_is_told_with_its_part_of_the_optimizers_step(tmp_path: Path) -> None:
    finding = told_in(tabular(COLUMNS), tmp_path, small_tables)
    assert "48 small tables" in finding.title
    assert finding.gain is not None
    # of 48 lookups, and of 48 of 52 parameters, most goes away
    assert finding.attributed_ns_per_step is not None
    assert finding.gain.step_ns is not None
    assert finding.gain.expected > 1 / (1 - 0.6 * finding.attributed_ns_per_step / finding.gain.step_ns)
    assert float(finding.evidence[2].value) > 0
    assert finding.remedy is not None
    assert "codes + self.start" in (finding.remedy.patch or "")


def test_without_gradients_the_lookups_alone_are_told(tmp_path: Path) -> None:
    forward = tabular(COLUMNS, learns=False)

    def step() -> None:  # a step of one pass is shorter than what others on the cores take of it at a time
        for _ in range(8):
            forward()

    assert told_in(step, tmp_path, small_tables).severity != "info"


@pytest.mark.parametrize(
    "step",
    [tabular(COLUMNS, one=True), tabular(6), tabular(20, rows=50_000)],
    ids=["one table", "few", "large ones"],
)
def test_other_tables_are_none(step: Callable[[], object], tmp_path: Path) -> None:
    found = found_in(step, tmp_path).get("host.small-operators")
    assert found is None or "tables" not in found.title
