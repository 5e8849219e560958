"""Calls of an execution trace are found again in a recording of other steps, by their turn in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.analysis.dataflow.test_sameness import observed
from tests.diagnosis.detectors.recordings import recorded

import whystall
from whystall.analysis.dataflow.alignment import rows_of_calls

torch: Any = pytest.importorskip("torch")


def test_a_call_is_the_one_of_its_turn_and_sizes(tmp_path: Path) -> None:
    square, narrow = torch.ones(8, 8), torch.ones(8, 2)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        square @ square
        square @ narrow
        square @ square
        for _ in range(turn):  # another number of them in each step
            narrow.exp()
        torch.cat([square, narrow], 1)

    nodes = observed(step, tmp_path, steps=1).nodes
    recorded(step, 3).export_chrome_trace(str(tmp_path / "trace.json"))
    trace = whystall.load(tmp_path / "trace.json")
    names = trace.operators["name"].cast(str).to_list()
    dims = trace.operators["input_dims"].cast(str).to_list()
    products = [node for node in nodes if node.name == "aten::mm"]

    found = rows_of_calls(trace, nodes, [products[2].number])
    assert [(names[row], dims[row]) for row in found] == [("aten::mm", "[[8, 8], [8, 8]]")] * 3
    rows = [row for row, name in enumerate(names) if name == "aten::mm"]
    assert found.tolist() == rows[2::3]

    others = [node.number for node in nodes if node.name in ("aten::exp", "aten::cat")]
    assert {names[row] for row in rows_of_calls(trace, nodes, others)} == {"aten::cat"}
    assert rows_of_calls(trace, nodes, []).tolist() == []
