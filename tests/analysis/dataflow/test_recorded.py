"""The graph of an execution trace, held against PyTorch's own dispatcher on the same program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whystall
from whystall.analysis.dataflow.by_shape import by_shape
from whystall.analysis.dataflow.graph import Dataflow
from whystall.analysis.dataflow.recorded import as_recorded, rows_by_rf_id
from whystall.analysis.operators import operator_tree
from whystall.analysis.work import operator_work
from whystall.cost.shapes import is_view
from whystall.trace.readers.execution_trace import read_execution_trace

torch: Any = pytest.importorskip("torch")
FOLDER = Path(__file__).parents[2] / "trace" / "readers" / "execution_traces"
ASKED = ("mm", "addmm", "mul", "mul_", "exp", "relu", "add", "add_", "cat", "sum", "_foreach_add_")


def reused_memory() -> None:
    """Temporaries that are freed: their memory returns as that of others."""
    x = torch.ones(64, 64)
    for _ in range(20):
        y = x.exp()
        z = y.mul(2)
        del y
        x = (z + z.t()).relu()


def written_in_place() -> None:
    """Writes to whole tensors, to views of them, and to each of a list."""
    x, w = torch.ones(8, 8), torch.ones(8, 4)
    y = x.exp()
    y[2:4].add_(1)
    z = y @ w
    y.mul_(3)
    torch._foreach_add_([y, z], 1.0)
    torch.cat([y, z], 1).sum()


def observed(program: Callable[[], None], folder: Path) -> Dataflow:
    path = folder / "trace.json"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    program()
    observer.stop()
    observer.unregister_callback()
    return as_recorded(read_execution_trace(path))


def dispatched(program: Callable[[], None]) -> list[tuple[str, list[int]]]:
    """Per call of what is asked for the calls (by place) that last wrote the memory of its tensors, -1 for none."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    out: list[tuple[str, list[int]]] = []
    writer: dict[int, int] = {}
    held: list[object] = []  # nothing is freed: each memory has an address of its own

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name.removeprefix("aten::")
            tensors = [one for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
            if name in ASKED:
                place = len(out)
                out.append((name, [writer.get(one.untyped_storage().data_ptr(), -1) for one in tensors]))
            result = func(*args, **(kwargs or {}))
            made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
            held.append((tensors, made))
            if name in ASKED:
                changed = made or tensors
                writer.update({one.untyped_storage().data_ptr(): place for one in changed})
            return result

    with Mode():
        program()
    return out


@pytest.mark.parametrize("program", [reused_memory, written_in_place])
def test_each_value_was_made_where_the_dispatcher_saw_its_memory_written(
    program: Callable[[], None], tmp_path: Path
) -> None:
    expected = dispatched(program)
    graph = observed(program, tmp_path)
    nodes = [node for node in range(len(graph.rows)) if graph.call(node).name.removeprefix("aten::") in ASKED]
    place = {node: number for number, node in enumerate(nodes)}

    def last_writer(value: int) -> int:
        maker = int(graph.made_by[value])
        while maker >= 0 and is_view(graph.call(maker).name):  # what it shows was written before
            maker = int(graph.made_by[graph.given(maker)[0]])
        return place.get(maker, -1)

    found = [
        (
            graph.call(node).name.removeprefix("aten::"),
            [last_writer(value) for value in graph.given(node) if graph.spec(value).shape],
        )
        for node in nodes
    ]
    assert len(found) > 5
    assert found == expected


def test_what_shapes_say_is_what_was_recorded() -> None:
    """Kineto's recording of the same run names no tensors: nine in ten forward reads have the true maker."""
    trace = whystall.load(FOLDER / "training.kineto.json.gz")
    tree = operator_tree(trace)
    guessed = by_shape(trace, tree, operator_work(trace, tree))
    known = as_recorded(read_execution_trace(FOLDER / "training.json.gz"), rows_by_rf_id(trace))
    assert known.confidence == 1
    node_of = {int(row): node for node, row in enumerate(known.rows)}
    at = trace.operators["ts_ns"].to_numpy()[guessed.rows]
    steps = trace.annotations.filter(trace.annotations["name"].cast(str).str.starts_with("Optimizer.step"))
    begin, end = steps["ts_ns"].to_numpy(), (steps["ts_ns"] + steps["duration_ns"]).to_numpy()
    updates = np.any([(at >= first) & (at < last) for first, last in zip(begin, end, strict=True)], axis=0)
    assert updates.any()
    right = []
    for node in np.flatnonzero(~guessed.backward & ~updates).tolist():
        other = node_of.get(int(guessed.rows[node]))
        if other is None:
            continue
        for mine, true in zip(guessed.given(node), known.given(other), strict=False):
            if (
                known.maker(true) >= 0
                and begin[0] <= trace.operators["ts_ns"][int(known.rows[known.maker(true)])] < end[0]
            ):
                continue  # parameters that the step before wrote are from outside of this one
            makers = [graph.maker(value) for graph, value in ((guessed, mine), (known, true))]
            rows = [
                int(graph.rows[maker]) if maker >= 0 else -1
                for graph, maker in zip((guessed, known), makers, strict=True)
            ]
            right.append(rows[0] == rows[1])
    assert len(right) > 20
    assert np.mean(right) >= 0.9
