"""Rows that are picked by ``x[index]``, whose gradients are added by an atomic operation each."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.recorded_sizes import sizes_by_argument
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of

CAUSE: Final = cause_beside(__name__)
_LEAST_NUMBERS: Final = CAUSE.threshold("least_numbers")
_SLOW_NS: Final = CAUSE.threshold("slow_ns")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_ADDS: Final = "aten::_index_put_impl_"
_PICKS: Final = "aten::index"
# The node of the backward pass, and what the engine records around it.
_MOST_REMOVES: Final = 3
_MATRIX: Final = 2
# Where index_put has the values, behind the matrix and the indices.
_VALUES: Final = 2
# What index_select's took of it, for ten sizes of 1 to 256 numbers a row: 0.04 to 0.44.
_LEFT: Final = (0.05, 0.15, 0.4)


def on_a_cpu(case: Case) -> Iterator[Replayed]:
    """Additions of the gradients of picked rows that are slow for their number, and the indexings that picked these."""
    for rank in case.ranks:
        slow = _slow(rank)
        if not slow:
            continue
        adds = np.zeros(len(rank.trace.operators), np.bool_)
        adds[list(slow)] = True
        picks = _forward_of(rank, adds)
        found = adds | picks
        nodes = case.work_of(rank, found | rank.workings.tree.below(found))
        taken = case.time_of(nodes)
        if taken < _LEAST_SHARE * case.step_ns:
            continue
        least, expected, most = _LEFT
        rows, columns = max(slow.values(), key=prod)
        picked_at = code_of(case, case.work_of(rank, picks))
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=taken,
            evidence=(
                evidence.count("rows that are picked", rows),
                evidence.count("numbers in each", columns),
                evidence.time(
                    "picking them, and adding up their gradients", taken, case.events_of(nodes), per=case.per
                ),
            ),
            removal=case.without(nodes, expected),
            floor=case.without(nodes, most),
            ceiling=case.without(nodes, least),
            method="replay: the same rows by index_select, by measured shares",
            code=picked_at if picked_at.lines else code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.1,
            confidence=0.85,
            rivals=("compute.dense-embedding", "host.small-operators"),
        )


def _slow(rank: RankCase) -> dict[int, tuple[int, int]]:
    """The calls that add gradients slowly: how many rows, and the numbers in each."""
    table = rank.trace.operators
    if "forward" not in table.columns:
        return {}
    adds = np.flatnonzero(matching(table["name"], _ADDS.__eq__) & rank.workings.tree.below(rank.backward))
    picked = judged(table.select("input_dims")[adds], _picked)
    lasts = table["duration_ns"].to_numpy()[adds]
    return {
        int(row): size
        for row, size, ns in zip(adds, picked, lasts, strict=True)
        if prod(size) >= _LEAST_NUMBERS and ns >= _SLOW_NS * prod(size)
    }


def _picked(dims: str | None) -> tuple[int, int]:
    """How many rows of a matrix gradients are added to, and the numbers in each; nothing for other indexings.

    Which dimension is indexed is not recorded: sizes tell it, where what is picked is not as large as the matrix.
    """
    given = sizes_by_argument(dims)
    if len(given) <= _VALUES or len(given[0]) != 1 or len(given[_VALUES]) != 1:
        return 0, 0
    (matrix,), (values,) = given[0], given[_VALUES]
    rows = len(matrix) == _MATRIX and len(values) >= _MATRIX and values[-1] == matrix[1] and values != matrix
    return (prod(values[:-1]), values[-1]) if rows else (0, 0)


def _forward_of(rank: RankCase, adds: Mask) -> Mask:
    """The indexings whose gradients are added so."""
    table = rank.trace.operators
    parent, forward = rows_of(table["parent"]), rows_of(table["forward"])
    above = np.flatnonzero(adds).astype(parent.dtype)
    out = np.zeros(len(table), np.bool_)
    for _ in range(_MOST_REMOVES):
        above = parent[above]
        above = above[above >= 0]
        own = forward[above]
        out[own[own >= 0]] = True
    picks: Mask = out & matching(table["name"], _PICKS.__eq__)
    return picks


RULE = Rule(CAUSE, (Finder(on_a_cpu, ("trace", "no_device", "operators", "shapes")),))
