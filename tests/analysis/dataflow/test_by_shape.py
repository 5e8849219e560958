"""The graph of values by their shapes: held against a look at one read after the other, and on recorded programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whystall
from whystall.analysis.dataflow.by_shape import Ran, by_shape, linked
from whystall.analysis.dataflow.graph import Dataflow
from whystall.analysis.operators import operator_tree
from whystall.analysis.work import Call, operator_work
from whystall.cost import cost_of
from whystall.cost.spec import TensorSpec

SIZES = st.sampled_from([(2, 3), (3, 2), (2, 2)])


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, tuple[tuple[int, int], ...], int]]:
    """Calls with the shapes of their tensors, and the thread of each."""
    out: list[tuple[str, tuple[tuple[int, int], ...], int]] = []
    for _ in range(draw(st.integers(0, 12))):
        shape = draw(SIZES)
        name = draw(st.sampled_from(["aten::relu", "aten::mm", "aten::add", "aten::add_"]))
        shapes = (shape,) if name == "aten::relu" else (shape, shape[::-1] if name == "aten::mm" else shape)
        out.append((name, shapes, draw(st.integers(0, 1))))
    return out


def graph_of(program: list[tuple[str, tuple[tuple[int, int], ...], int]]) -> Dataflow:
    distinct = list(dict.fromkeys((name, shapes) for name, shapes, _ in program))
    calls = []
    for name, shapes in distinct:
        arguments = tuple(TensorSpec(shape) for shape in shapes)
        calls.append(Call(name, arguments, cost_of(name, arguments)))
    count = len(program)
    return linked(
        Ran(
            rows=np.arange(count),
            call_of=np.array([distinct.index((name, shapes)) for name, shapes, _ in program], np.int64),
            calls=calls,
            group=np.array([thread for _, _, thread in program], np.int64),
            backward=np.zeros(count, np.bool_),
            blind=np.zeros(0, np.int64),
        ),
        {},
    )


@given(programs())
def test_each_read_is_of_the_last_value_of_its_shape_in_its_thread(
    program: list[tuple[str, tuple[tuple[int, int], ...], int]],
) -> None:
    graph = graph_of(program)
    made: dict[tuple[tuple[int, int], int], list[int]] = {}
    for node, (name, shapes, thread) in enumerate(program):
        expected = []
        for place, shape in enumerate(shapes):
            before = made.get((shape, thread), [])
            # of two of a shape the first one is the older, but in a product, which may be a square
            back = 1 if name != "aten::mm" and shape in shapes[place + 1 :] else 0
            expected.append(before[-1 - back] if len(before) > back else -1)
        assert [int(graph.made_by[value]) for value in graph.given(node)] == expected
        out = (shapes[0][0], shapes[-1][-1]) if name == "aten::mm" else shapes[0]
        made.setdefault((out, thread), []).append(node)


@given(programs())
def test_what_reads_a_value_is_what_is_given_it(program: list[tuple[str, tuple[tuple[int, int], ...], int]]) -> None:
    graph = graph_of(program)
    for value in range(len(graph.made_by)):
        assert graph.readers(value) == [node for node in range(len(program)) if value in graph.given(node)]
        assert graph.made_by[graph.origin(value)] == graph.maker(value)


def recorded(step: Callable[[], object], folder: Path) -> Dataflow:
    """The graph of one recorded step."""
    torch = pytest.importorskip("torch")
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        step()
    profile.export_chrome_trace(str(folder / "trace.json"))
    trace = whystall.load(folder / "trace.json")
    tree = operator_tree(trace)
    return by_shape(trace, tree, operator_work(trace, tree))


def test_views_and_copies_are_seen_through(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    x, w = torch.rand(6, 4), torch.rand(5, 6)

    graph = recorded(lambda: (w @ x).t().contiguous() * 2, tmp_path)

    (product,), (scale,) = graph.named(frozenset({"aten::mm"})), graph.named(frozenset({"aten::mul"}))
    assert graph.maker(graph.given(scale)[0]) == product
    assert graph.uses(graph.made(product)[0]) == [scale]
    assert graph.uses(graph.given(scale)[0]) == [scale]


def test_a_write_in_place_makes_a_new_value(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    x = torch.rand(6, 4)

    def step() -> object:
        y = x.exp()
        y.mul_(3)
        return y.sum()

    graph = recorded(step, tmp_path)

    nodes = [graph.named(frozenset({f"aten::{name}"}))[0] for name in ("exp", "mul_", "sum")]
    assert [graph.maker(graph.given(node)[0]) for node in nodes] == [-1, nodes[0], nodes[1]]


def test_rows_that_are_picked_are_what_indexing_made(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    table, numbers = torch.rand(10, 4), torch.tensor([1, 2, 3, 3, 2, 1, 0, 9, 8, 7, 6, 5])

    graph = recorded(lambda: table[numbers] * 2, tmp_path)

    (pick,), (read,) = graph.named(frozenset({"aten::index"})), graph.named(frozenset({"aten::mul"}))
    assert graph.maker(graph.given(read)[0]) == pick
    assert graph.spec(graph.made(pick)[0]).shape == (12, 4)
