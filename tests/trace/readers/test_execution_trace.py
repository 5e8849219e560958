"""Reads execution traces as PyTorch 2.13 writes them, and in the form before Chakra's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import whystall
from whystall.errors import InputError
from whystall.trace.files import Limits
from whystall.trace.readers.execution_trace import Node, Tensor, read_execution_trace

FOLDER = Path(__file__).parent / "execution_traces"
RECORDED = FOLDER / "training.json.gz"


def content() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return found


def first(name: str) -> Node:
    return next(node for node in read_execution_trace(RECORDED).nodes if node.name == name)


def test_every_node_is_read_in_the_order_in_which_it_began() -> None:
    numbers = [node.number for node in read_execution_trace(RECORDED).nodes]
    assert numbers == sorted(one["id"] for one in content()["nodes"])


def test_an_operator_has_its_tensors_with_their_memory() -> None:
    added, given, weight, *scalars = (node := first("aten::addmm")).given
    assert isinstance(added, Tensor)
    assert isinstance(given, Tensor)
    assert isinstance(weight, Tensor)
    assert (added.shape, given.shape, weight.shape, scalars) == ((16,), (12, 8), (8, 16), [1, 1])
    assert (weight.strides, weight.dtype) == ((1, 8), "float")  # of a layer: turned around
    (made,) = node.returned
    assert isinstance(made, Tensor)
    assert made.shape == (12, 16)
    assert made.storage not in {added.storage, given.storage, weight.storage}


def test_lists_of_tensors_and_of_numbers_are_lists() -> None:
    tensors, dimension = first("aten::cat").given
    assert isinstance(tensors, list)
    assert [one.shape for one in tensors if isinstance(one, Tensor)] == [(6, 8), (6, 8)]
    assert dimension == 0
    assert first("aten::as_strided").given[1] == [6, 8]


def test_the_numbers_are_those_of_kinetos_recording() -> None:
    operators = whystall.load(FOLDER / "training.kineto.json.gz").operators
    names = dict(zip(operators["record_function_id"], operators["name"].cast(str), strict=True))
    named = [node for node in read_execution_trace(RECORDED).nodes if node.schema]
    assert len(named) > 100
    assert [names[node.rf_id] for node in named] == [node.name for node in named]


def test_the_form_before_chakras_says_the_same(tmp_path: Path) -> None:
    """The form of schema 1.0.1: attributes and lists stand in the node itself."""
    older = []
    for node in content()["nodes"]:
        attributes = {one["name"]: one["value"] for one in node["attrs"]}
        older.append(
            {"id": node["id"], "name": node["name"], "parent": node["ctrl_deps"]}
            | {name: attributes[name] for name in ("rf_id", "seq_id", "scope", "tid", "op_schema")}
            | {
                name: node[f"{kind}puts"][part]
                for kind in ("in", "out")
                for name, part in (
                    (f"{kind}puts", "values"), (f"{kind}put_shapes", "shapes"), (f"{kind}put_types", "types")
                )
            }
        )  # fmt: skip
    path = tmp_path / "older.json"
    path.write_text(json.dumps({"schema": "1.0.1", "nodes": older}))
    before, now = read_execution_trace(path).nodes, read_execution_trace(RECORDED).nodes
    assert [(node.name, node.parent, node.rf_id, node.backward) for node in before] == [
        (node.name, node.parent, node.rf_id, node.backward) for node in now
    ]
    assert [_without_strides(node) for node in before] == [_without_strides(node) for node in now]


def _without_strides(node: Node) -> list[object]:
    return [
        (one.storage, one.offset, one.shape, one.dtype) if isinstance(one, Tensor) else one
        for one in (*node.given, *node.returned)
        if not isinstance(one, list)
    ]


def test_a_file_that_ends_within_keeps_what_stands_before(tmp_path: Path) -> None:
    text = gzip.decompress(RECORDED.read_bytes())
    path = tmp_path / "cut.json"
    path.write_bytes(text[: len(text) // 2])
    found = read_execution_trace(path)
    assert 0 < len(found.nodes) < len(content()["nodes"])
    assert "ends within its nodes" in found.warnings[0]


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"nodes": []}', '{"nodes": [1, null]}', '{"nodes": [{"id": "1"}]}', "\x00"]
)
def test_other_files_are_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match="no execution trace"):
        read_execution_trace(path)


def test_what_is_read_is_bounded(tmp_path: Path) -> None:
    few = read_execution_trace(RECORDED, Limits(events=10))
    assert len(few.nodes) == 10
    assert "first 10" in few.warnings[0]
    nested = tmp_path / "nested.json"
    nested.write_text('{"nodes": [' + "[" * 100_000)
    with pytest.raises(InputError):
        read_execution_trace(nested)


def test_a_call_is_not_inside_one_that_had_ended_before(tmp_path: Path) -> None:
    """As torch writes it where a collective began on one thread and ended on another: a call is written as it ends."""

    def node(number: int, name: str, parent: int) -> dict[str, Any]:
        nothing: dict[str, Any] = {"values": [], "shapes": [], "types": [], "strides": []}
        return {"id": number, "name": name, "ctrl_deps": parent, "inputs": nothing, "outputs": nothing, "attrs": []}

    written = [node(1, "[pytorch|profiler|execution_trace|process]", 1)]
    written += [node(2, "[pytorch|profiler|execution_trace|thread]", 1), node(5, "aten::copy_", 4)]
    written += [node(4, "backward", 3), node(6, "aten::add_", 4), node(7, "aten::mul", 4)]
    written += [*(node(number, "aten::neg", 3) for number in range(9, 13)), node(3, "step", 2), node(8, "aten::exp", 4)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": written}))
    parents = {one.number: one.parent for one in read_execution_trace(path).nodes}
    assert parents == {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 3, 7: 3, 8: 2} | dict.fromkeys(range(9, 13), 3)

    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": sorted(written, key=lambda one: one["id"])}))
    assert {one.number: one.parent for one in read_execution_trace(path).nodes}[6] == 4  # not in torch's order
