"""Operators: calls, host time, and the time of their device events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystall._native import nearest_marked, outermost, subtree_sums
from whystall.analysis.results import Operator
from whystall.trace.columns import codes, distinct
from whystall.trace.link import rows_of
from whystall.trace.model import Trace


@dataclass(frozen=True, slots=True)
class OperatorTree:
    """The operators of a trace as a forest; ``work_ns`` is the device time that each launched itself.

    On a job without an accelerator the device is the CPU and an operator's own work is its self time.
    """

    order: NDArray[np.uint32]
    parent: NDArray[np.int32]
    name_of: NDArray[np.int32]
    names: list[str]
    work_ns: NDArray[np.int64]
    work_events: NDArray[np.int64]

    def around(self, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which operators hold a marked one (other than itself)."""
        found = np.zeros(len(marked), np.bool_)
        above = np.unique(self.parent[marked])
        while len(above := above[above >= 0]):
            above = above[~found[above]]
            found[above] = True
            above = np.unique(self.parent[above])
        return found

    def below(self, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which operators lie inside a marked one (other than itself)."""
        inside: NDArray[np.bool_] = nearest_marked(self.order, self.parent, marked.astype(np.uint8)) >= 0
        return inside


def operator_tree(trace: Trace) -> OperatorTree:
    """The forest of a trace's operators with the work of each."""
    table = trace.operators
    count = len(table)
    order = trace.host_order[trace.host_order < count]
    if trace.device_events.is_empty():
        work = table["self_ns"].to_numpy()
        events = np.ones(count, np.int64)
    else:
        operator = rows_of(trace.device_events["operator"])
        linked = operator >= 0
        duration = trace.device_events["duration_ns"].to_numpy()
        work = np.zeros(count, np.int64)
        np.add.at(work, operator[linked], duration[linked])
        events = np.bincount(operator[linked], minlength=count).astype(np.int64)
    return OperatorTree(
        order=order,
        parent=rows_of(table["parent"]),
        name_of=codes(table["name"]).astype(np.int32),
        names=distinct(table["name"]),
        work_ns=np.ascontiguousarray(work, dtype=np.int64),
        work_events=events,
    )


def operator_results(trace: Trace, tree: OperatorTree, rank: int) -> list[Operator]:
    """One row per operator name, the one with the most device time first."""
    if not len(tree.order):
        return []
    table = trace.operators
    host, host_self = table["duration_ns"].to_numpy(), table["self_ns"].to_numpy()
    outer = outermost(tree.order, tree.parent, tree.name_of).astype(bool)
    inclusive = subtree_sums(tree.order, tree.parent, tree.work_ns)
    count = len(tree.names)

    def per_name(values: NDArray[np.int64], of: NDArray[np.bool_] | None = None) -> list[int]:
        sums = np.zeros(count, np.int64)
        chosen = slice(None) if of is None else of
        np.add.at(sums, tree.name_of[chosen], values[chosen])
        return [int(value) for value in sums]

    calls = np.bincount(tree.name_of, minlength=count).tolist()
    columns = (
        per_name(inclusive, outer),
        per_name(tree.work_ns),
        per_name(tree.work_events),
        per_name(host, outer),
        per_name(host_self),
    )
    rows = [
        Operator(
            rank=rank,
            name=name,
            calls=calls[index],
            device_ns=columns[0][index],
            device_self_ns=columns[1][index],
            device_events=columns[2][index],
            host_ns=columns[3][index],
            host_self_ns=columns[4][index],
        )
        for index, name in enumerate(tree.names)
    ]
    return sorted(rows, key=lambda row: (-row.device_ns, -row.host_ns, row.name))
