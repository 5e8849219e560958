"""Tables of embeddings are known with the line of the user's that makes them."""

from __future__ import annotations

import copy
import gc
from pathlib import Path

import torch
from tests.capture.conftest import Jobs

from whystall.capture.global_hooks import put
from whystall.capture.tables_made import TablesMade
from whystall.run_folder.observations import MOST_TABLES


def table(made: TablesMade, rows: int, size: int) -> torch.nn.Embedding:
    """A table of which is heard while it is made, when it has no weight yet."""

    def given(owner: torch.nn.Module, *_: object) -> None:
        made.add(owner)

    take_out = put(torch.nn.modules.module._global_parameter_registration_hooks, given)
    try:
        return torch.nn.Embedding(rows, size)
    finally:
        take_out()


def test_tables_are_told_once_for_each_line_and_size_while_they_live() -> None:
    made = TablesMade(torch)
    kept = [table(made, 100, 8), table(made, 100, 8), table(made, 7, 3)]
    made.add(torch.nn.Linear(2, 2))
    made.add(copy.deepcopy(kept[0]))
    made.add(kept[2])  # it is given another weight
    table(made, 9, 9)
    gc.collect()
    assert [(one.rows, one.size, one.at.text) for one in made.told()] == [
        (100, 8, "made.add(owner)"),
        (7, 3, "made.add(owner)"),
    ]


def test_not_more_than_so_many_are_remembered() -> None:
    made = TablesMade(torch)
    kept = [table(made, rows, 1) for rows in range(1, MOST_TABLES + 9)]
    assert len(kept) > MOST_TABLES
    assert len(made.told()) == MOST_TABLES


def test_a_watched_job_tells_where_its_tables_are_made(jobs: Jobs) -> None:
    script = jobs.home / "words.py"
    script.write_text(
        "import torch\n"
        "class Words(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table = torch.nn.Embedding(1000, 16)\n"
        "    def forward(self, ids):\n"
        "        return self.table(ids).sum()\n"
        "model = Words()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(30):\n"
        "    model(torch.arange(8)).backward()\n"
        "    optimizer.step()\n"
    )
    (rank,) = jobs.whystall(str(script)).ranks()
    (table,) = rank["tables"]
    assert (table["rows"], table["size"]) == (1000, 16)
    assert (Path(table["at"]["file"]).name, table["at"]["line"]) == ("words.py", 5)
