"""Sums over several tensors (einsum) that are contracted from left to right where another order is less work.

torch uses the order of ``opt_einsum`` where that is installed, and goes from left to right where it is not. The
equation is not recorded: dimensions of one size count as one, and if sizes are ambiguous there is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import prod
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.detectors.going_back import backward_of
from whystall.diagnosis.detectors.wasted import Wasted
from whystall.diagnosis.rank_case import RankCase
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import Shape, sizes_by_argument

_OPERANDS: Final = (3, 6)
_LEAST_SAVED: Final = 0.5
_LEAST_WORK: Final = 1 << 18
# Small products run below the speed of large ones: at most this many times their arithmetic's time.
_SLOWER: Final = 4.0
Labels = frozenset[int]


def einsum_order(rank: RankCase) -> Wasted | None:
    """Such sums of forward passes; ``None`` where there are none, or sizes are not recorded."""
    table, below = rank.trace.operators, rank.workings.tree.below
    forward = ~(rank.backward | below(rank.backward))
    rows = np.flatnonzero(matching(table["name"], lambda name: name == "aten::einsum") & forward)
    known = judged(table.select("input_dims")[rows], _operands)
    marked = np.zeros(len(table), np.bool_)
    lasts = table["duration_ns"].to_numpy()
    taken = kept = largest = 0.0
    count = 0
    for row, operands in zip(rows.tolist(), known, strict=True):
        if operands is None:
            continue
        one = np.zeros(len(table), np.bool_)
        one[row] = True
        inside = list(_contractions(rank, np.flatnonzero(below(one))))
        work = sum(each for each, _ in inside)
        least = _least_work(operands, inside[-1][1]) if inside else None
        if least is None or work < _LEAST_WORK or least > (1 - _LEAST_SAVED) * work:
            continue
        marked |= one
        taken += float(lasts[row])
        kept += float(lasts[row]) * least / work
        largest, count = max((largest, count), (work / least, len(operands)))
    if not taken:
        return None
    marked |= below(marked)
    marked |= backward_of(rank, marked)
    left = kept / taken
    return Wasted(
        operators=marked,
        left=(left, min(left * _SLOWER**0.5, 1.0), min(left * _SLOWER, 1.0)),
        what="in such sums, with their backward pass",
        facts=(
            evidence.count("tensors in such a sum", count),
            evidence.count("times the multiplications of the best order", largest),
        ),
        method="replay: the arithmetic of the best order",
        detail=f"an einsum of {count} tensors is contracted from left to right",
        remedy="contracted",
    )


def _operands(dims: str | None) -> tuple[Shape, ...] | None:
    """The sizes of the tensors in a sum, if each dimension has a distinct size."""
    for sizes in sizes_by_argument(dims):
        if _OPERANDS[0] <= len(sizes) <= _OPERANDS[1]:
            apart = all(len(set(size)) == len(size) for size in sizes)
            return sizes if apart and all(min(size, default=0) > 1 for size in sizes) else None
    return None


def _contractions(rank: RankCase, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Iterator[tuple[int, int]]:
    """The multiplications of each product within a sum, and the number of elements it makes."""
    table = rank.trace.operators
    names, dims = table["name"][rows].cast(str), table["input_dims"][rows]
    for name, text in zip(names, dims, strict=True):
        sizes = [each[0] for each in sizes_by_argument(text)[:2] if len(each) == 1]
        if len(sizes) < 2 or len(sizes[0]) != len(sizes[1]):
            continue
        one, other = sizes
        if name == "aten::bmm":
            made = prod(one[:-1]) * other[-1]
            yield made * one[-1], made
        elif name == "aten::mul":
            made = prod(max(pair) for pair in zip(one, other, strict=True))
            yield made, made


def _least_work(operands: tuple[Shape, ...], made: int) -> int | None:
    """The multiplications of the best order, for sums with ``made`` elements; ``None`` where that is ambiguous."""
    labels = frozenset(size for operand in operands for size in operand)
    results = [
        frozenset(some)
        for count in range(len(labels) + 1)
        for some in combinations(sorted(labels), count)
        if prod(some) == made
    ]
    return _best([frozenset(operand) for operand in operands], results[0]) if len(results) == 1 else None


def _best(operands: list[Labels], result: Labels) -> int:
    if len(operands) == 1:
        return 0
    least = []
    for one, other in combinations(range(len(operands)), 2):
        rest = [each for at, each in enumerate(operands) if at not in (one, other)]
        both = operands[one] | operands[other]
        kept = both & result.union(*rest)
        least.append(prod(both) + _best([*rest, kept], result))
    return min(least)
