"""An embedding whose gradient and optimizer's step go over all rows of a table while a batch reads few."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.frees import dropped_gradients
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of, made_at
from whystall.json_text import parse_json
from whystall.run_folder.observations import MadeAt
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import all_sizes

CAUSE: Final = cause_beside(__name__)
_LEAST_ROWS: Final = CAUSE.threshold("least_rows")
_LEAST_ELEMENTS: Final = CAUSE.threshold("least_elements")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_SCATTERED: Final = CAUSE.threshold("scattered")
_FIXED_NS: Final = CAUSE.threshold("sparse_ns")
_INDEX_NS: Final = CAUSE.threshold("index_ns")
_NUMBER_NS: Final = CAUSE.threshold("number_ns")
_SGD_FIXED_NS: Final = CAUSE.threshold("sgd_sparse_ns")
_SGD_INDEX_NS: Final = CAUSE.threshold("sgd_index_ns")
_MOST_OFF: Final = 1.6
_MOST_LINES: Final = 3
_OF_ADAGRAD: Final = 2 / 3
_ADAGRAD: Final = re.compile(r"^Optimizer\.step#Adagrad\.step$")
_SGD: Final = re.compile(r"^Optimizer\.step#SGD\.step$")
_DECAYS: Final = frozenset({"aten::mul_", "aten::_foreach_mul_"})
_BACKWARD: Final = "aten::embedding_dense_backward"
_READS_FEW: Final = frozenset({"aten::embedding", "aten::index_select", "aten::gather"})
_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})

Table = tuple[int, ...]
"""The rows of an embedding and the size of one."""


def in_trace(case: Case) -> Iterator[Replayed]:
    """By sizes: tables with a dense gradient, and the operators that go over them."""
    for rank in case.ranks:
        tables = _tables(rank)
        if not tables:
            continue
        left = _left(rank, tables)
        nodes = case.work_of(rank, left[:, 0] < 1)
        kept, at_most = (case.operator_values(rank, values, 1.0) for values in left.T)
        # Overhead of a sparse gradient: its indices are sorted and joined, and the optimizer picks rows.
        sparse = 0.0 if rank.on_device else _sparse_ns(rank, tables)
        share = np.where(at_most < 1, min(sparse / max(case.time_of(nodes), 1), 1.0), 0.0)
        at_most, least = np.maximum(at_most, share), np.minimum(np.maximum(at_most, _MOST_OFF * share), 1.0)
        gone = nodes
        if not rank.on_device:  # a gradient of megabytes goes back to the system when it is dropped
            freed = dropped_gradients(case, rank)
            gone, kept, at_most = nodes | freed, np.where(freed, 0.0, kept), np.where(freed, 0.0, at_most)
        saved = int((case.replayed.duration * (1 - at_most))[case.in_window(gone)].sum()) // max(case.steps, 1)
        if saved < _LEAST_SHARE * case.step_ns:
            continue
        rows, read = sum(rows for rows, _ in tables), sum(tables.values())
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=case.time_of(nodes),
            evidence=(
                evidence.time(
                    "operators that go over such tables", case.time_of(nodes), case.events_of(nodes), per=case.per
                ),
                evidence.count("rows of the tables", rows),
                evidence.count("rows that a batch reads, at most", read),
            ),
            removal=case.without(gone, at_most),
            floor=case.without(nodes, least),
            ceiling=case.without(gone, kept),
            method="replay: the rows that a batch reads instead of all",
            code=made_at(_lines(case, rank, tables), code_of(case, nodes)),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.85,
            detail=f"at most {read:,} of {rows:,} rows are read",
            rivals=("compute.unfused-optimizer",),
        )


def _lines(case: Case, rank: RankCase, tables: dict[Table, int]) -> list[MadeAt]:
    """Where a watched job makes such tables, the largest first."""
    made = [one for one in case.facts.of_rank(rank.rank).tables if (one.rows, one.size) in tables]
    places = {(one.at.file, one.at.line): one.at for one in sorted(made, key=lambda one: -one.rows * one.size)}
    return list(places.values())[:_MOST_LINES]


def _sparse_ns(rank: RankCase, tables: dict[Table, int]) -> float:
    """The time of sparse gradients of tables: a fixed part, and a part for each row that is read.

    SparseAdam, which replaces Adam, takes more than Adagrad does; SGD adds rows one by one, unless it has a momentum to
    keep.
    """
    names = rank.trace.annotations["name"].cast(str).unique().to_list()
    fixed, of_adam = _FIXED_NS, {table: _INDEX_NS + _NUMBER_NS * table[1] for table in tables}
    if any(map(_SGD.match, names)):
        operators = rank.trace.operators
        decays = operators.filter(pl.Series(matching(operators["name"], _DECAYS.__contains__)))
        keeps = {one for sizes in set(judged(decays.select("input_dims"), all_sizes)) for one in sizes}
        if not keeps & set(tables):
            return len(tables) * _SGD_FIXED_NS + sum(tables.values()) * _SGD_INDEX_NS
    share = _OF_ADAGRAD if any(map(_ADAGRAD.match, names)) or any(map(_SGD.match, names)) else 1.0
    return len(tables) * fixed + share * sum(read * of_adam[table] for table, read in tables.items())


def _tables(rank: RankCase) -> dict[Table, int]:
    """The sizes of embeddings with a dense gradient, and how many of their rows a batch reads at most."""
    table = rank.trace.operators
    found: dict[Table, int] = {}
    if table.is_empty():
        return found
    backward = table.filter(pl.Series(matching(table["name"], lambda name: name == _BACKWARD)))
    for read in judged(backward.select("input_dims", "concrete_inputs"), _read):
        if read is not None:
            (rows, size), indices = read
            if rows >= _LEAST_ROWS * indices and rows * size >= _LEAST_ELEMENTS:
                found[rows, size] = max(found.get((rows, size), 0), indices)
    products = table.filter(pl.Series(matching(table["name"], _PRODUCTS.__contains__)))
    taken = {one for sizes in set(judged(products.select("input_dims"), all_sizes)) for one in sizes}
    return {one: read for one, read in found.items() if one not in taken and one[::-1] not in taken}


def _read(dims: str | None, concrete: str | None) -> tuple[Table, int] | None:
    """The table's size and the number of indices, of one backward call."""
    try:
        sizes, values = parse_json(dims or ""), parse_json(concrete or "")
        rows, size = int(values[2]), int(sizes[0][-1])
        indices = int(np.prod(sizes[1], dtype=np.int64))
    except (ValueError, TypeError, IndexError, KeyError, OverflowError):
        return None
    return ((rows, size), indices) if min(rows, size, indices) > 0 else None


def _left(rank: RankCase, tables: dict[Table, int]) -> NDArray[np.float64]:
    """Per operator the share of its time that is left when it goes over the rows alone that a batch reads.

    Two columns: at the pace of all rows in a row, and of scattered ones.
    """
    operators = rank.trace.operators
    of_table = {one: np.minimum(np.array([1, _SCATTERED]) * read / one[0], 1.0) for one, read in tables.items()}

    def left(dims: str | None) -> NDArray[np.float64]:
        sizes = [(one, float(np.prod(one, dtype=np.float64))) for one in all_sizes(dims)]
        kept = np.zeros(2)
        for one, size in sizes:
            kept += size * of_table.get(one, np.ones(2))
        total = sum(size for _, size in sizes)
        return kept / total if total > 0 else np.ones(2)

    out = np.array(judged(operators.select("input_dims"), left), np.float64)
    out[matching(operators["name"], _READS_FEW.__contains__)] = 1.0
    # The operator that makes the gradient does not have the table's size.
    rows = np.flatnonzero(matching(operators["name"], lambda name: name == _BACKWARD))
    reads = judged(operators[rows].select("input_dims", "concrete_inputs"), _read)
    for row, read in zip(rows.tolist(), reads, strict=True):
        if read is not None and read[0] in of_table:
            out[row] = of_table[read[0]]
    return out


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators", "shapes")),))
