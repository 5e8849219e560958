"""Products with matrices that are nearly all zeros: sparse ones made dense, and one-hot rows.

A recording shows the operators that make them; in a watched job on a CPU the zeros of some are counted
(`whystall.capture`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall._native import nearest_marked
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.json_text import parse_json
from whystall.replay.graph import Mask
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import all_sizes, first_size

CAUSE: Final = cause_beside(__name__)
_MOST_DENSE: Final = CAUSE.threshold("most_dense")
_SLOWER: Final = CAUSE.threshold("slower")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_MAKERS: Final = frozenset({"aten::to_dense", "aten::one_hot"})
_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm"})
_MOST_OFF: Final = 3.0
_LARGEST: Final = 1 << 40
_MATRIX: Final = 2
_SEVERAL: Final = 2
# Batches differ in size by no more than this.
_NEAR: Final = 1.25

Shape = tuple[int, int]


def on_a_cpu(case: Case) -> Iterator[Replayed]:
    """By recorded sizes: the operators that make such matrices, and the products that read them."""
    for rank in case.ranks:
        makers = np.flatnonzero(matching(rank.trace.operators["name"], _MAKERS.__contains__))
        seen = {(one.rows, one.columns): one.share for one in case.facts.of_rank(rank.rank).sparse}
        dense_of = {size: share for size, share in {**_made(rank, makers), **seen}.items() if 0 < share <= _MOST_DENSE}
        if not dense_of:
            continue
        given = _given(rank)
        dense_of.update(_of_other_batches(dense_of, given))
        products = _left(rank, {size: share for size, share in dense_of.items() if size in given})
        making = _making(rank, makers, given)
        expected, most, least = (
            case.operator_values(rank, np.where(making, 0.0, np.minimum(products * off, 1.0)), 1.0)
            for off in (1.0, _MOST_OFF, 1 / _MOST_OFF)
        )
        nodes = case.work_of(rank, making | (products < 1))
        saved = int((case.replayed.duration * (1 - expected))[case.in_window(nodes)].sum()) // max(case.steps, 1)
        if saved < _LEAST_SHARE * case.step_ns or not (products < 1).any():
            continue
        per_step = case.time_of(nodes)
        (rows, columns), share = min(
            (one for one in dense_of.items() if one[0] in given), key=lambda one: (one[1], one[0])
        )
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time(
                    "making such matrices and multiplying them", per_step, case.events_of(nodes), per=case.per
                ),
                evidence.share("of the entries of the sparsest are not zero", share),
            ),
            removal=case.without(nodes, expected),
            floor=case.without(nodes, most),
            ceiling=case.without(nodes, least),
            method="replay: products over the entries that are not zero",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.85,
            detail=f"{rows:,} x {columns:,}, {share:.2%} of it not zero",
            rivals=("compute.cast-churn", "host.small-operators", "compute.redundant-work"),
        )


def _made(rank: RankCase, makers: NDArray[np.intp]) -> dict[Shape, float]:
    """Sizes of matrices that are made, and the share of their entries that is not zero (the largest of a size)."""
    table = rank.trace.operators
    if not len(makers):
        return {}
    marked = np.zeros(len(table), np.uint8)
    marked[makers] = 1
    maker_of = nearest_marked(rank.workings.tree.order, rank.workings.tree.parent, marked)
    inside = np.flatnonzero(maker_of >= 0)
    lengths: dict[int, list[int]] = {}
    for row, size in zip(inside.tolist(), judged(table.select("input_dims")[inside], first_size), strict=True):
        if len(size) == 1:
            lengths.setdefault(int(maker_of[row]), []).append(size[0])
    found: dict[Shape, float] = {}
    told = judged(table.select("name", "input_dims", "concrete_inputs")[makers], _size)
    for row, one in zip(makers.tolist(), told, strict=True):
        if one is None:
            continue
        (rows, columns), entries = one
        # A sparse matrix shows its number of entries only in its calls: the longest list that is not the matrix itself.
        entries = entries or max((n for n in lengths.get(row, ()) if n not in {rows + 1, rows * columns}), default=0)
        found[rows, columns] = max(found.get((rows, columns), 0.0), entries / (rows * columns))
    return found


def _size(name: str, dims: str | None, concrete: str | None) -> tuple[Shape, int] | None:
    """The matrix that a call makes and, of one-hot rows, how many entries are not zero (else 0)."""
    given = first_size(dims)
    try:
        rows, columns = (prod(given), int(parse_json(concrete or "")[1])) if name == "aten::one_hot" else given
    except (ValueError, TypeError, IndexError):
        return None
    if not all(0 < n < _LARGEST for n in (rows, columns)):
        return None
    return (rows, columns), rows if name == "aten::one_hot" else 0


def _of_other_batches(dense_of: dict[Shape, float], given: frozenset[Shape]) -> dict[Shape, float]:
    """Square matrices whose size is another in each batch (a graph's), where those of some batches are known."""
    known = {rows: share for (rows, columns), share in dense_of.items() if rows == columns}
    if len(known) < _SEVERAL:
        return {}
    least, most = min(known) / _NEAR, max(known) * _NEAR
    share = max(known.values())
    return {size: share for size in given - set(dense_of) if size[0] == size[1] and least <= size[0] <= most}


def _making(rank: RankCase, makers: NDArray[np.intp], given: frozenset[Shape]) -> Mask:
    """The calls that make matrices for products, with all that they call."""
    table = rank.trace.operators
    marked = np.zeros(len(table), np.bool_)
    told = judged(table.select("name", "input_dims", "concrete_inputs")[makers], _size)
    marked[makers] = [one is not None and one[0] in given for one in told]
    inside: Mask = marked | rank.workings.tree.below(marked)
    return inside


def _given(rank: RankCase) -> frozenset[Shape]:
    """The sizes of the matrices in products of the forward pass.

    Others are not multiplied: one-hot targets have the size of the logits, whose gradient the backward pass multiplies.
    """
    table = rank.trace.operators
    rows = np.flatnonzero(matching(table["name"], _PRODUCTS.__contains__) & ~rank.backward)
    return frozenset(size for sizes in judged(table.select("input_dims")[rows], _matrices) for size in sizes)


def _matrices(dims: str | None) -> tuple[tuple[int, int], ...]:
    """The sizes of a call's matrices."""
    return tuple((one[0], one[1]) for one in all_sizes(dims) if len(one) == _MATRIX)


def _left(rank: RankCase, dense_of: dict[Shape, float]) -> NDArray[np.float64]:
    """Per operator the share of its time that is left, 1 but for products with such a matrix."""
    table = rank.trace.operators

    def left(dims: str | None) -> float:
        shares = [dense_of[size] for one in _matrices(dims) for size in (one, one[::-1]) if size in dense_of]
        return min(min(shares, default=1.0) * _SLOWER, 1.0)

    out = np.ones(len(table))
    rows = np.flatnonzero(matching(table["name"], _PRODUCTS.__contains__))
    out[rows] = judged(table.select("input_dims")[rows], left)
    return out


RULE = Rule(CAUSE, (Finder(on_a_cpu, ("trace", "no_device", "operators", "shapes")),))
