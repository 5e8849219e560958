"""Low-rank adapters (LoRA) that are computed beside the layers they belong to, where nothing learns.

A layer multiplies its input by its weight, then the same input by two narrow matrices whose product has the weight's
shape, scales that and adds it. Merged into the weight the adapter costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.detectors.prefixes import products
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Times
from whystall.trace.columns import codes, distinct
from whystall.trace.link import rows_of

_WIDEST: Final = 256
_NARROW: Final = 8
"""A weight is this many times as wide as its adapter, or more."""
_DEEPEST: Final = 8
_BEHIND: Final = frozenset({"aten::mul", "aten::add", "aten::add_", "aten::mul_"})
_MOST_BEHIND: Final = 2


@dataclass(frozen=True, slots=True)
class Adapters:
    """When each adapter begins and ends, by time, and the widest of their inner dimensions.

    ``called`` is when the operator before the layer ended: Python between it and the layer may be the adapter's.
    """

    called: Times
    layer: Times
    begin: Times
    end: Times
    widest: int


def adapters(rank: RankCase) -> Adapters | None:
    """The adapters of a recording without a backward pass; ``None`` where there are none."""
    if rank.trains:
        return None
    found = products(rank)
    if len(found.at) < _MOST_BEHIND + 1:
        return None
    rows, inner, columns = found.size.T
    base, down, up = slice(None, -2), slice(1, -1), slice(2, None)
    is_one = (rows[base] == rows[down]) & (rows[down] == rows[up]) & (inner[base] == inner[down])
    is_one &= (columns[base] == columns[up]) & (columns[down] == inner[up])
    is_one &= (columns[down] <= _WIDEST) & (columns[down] * _NARROW <= np.minimum(inner[base], columns[base]))
    first = np.flatnonzero(is_one)
    if not len(first):
        return None
    outermost = _outermost(rank)
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()
    until = at + table["duration_ns"].to_numpy()
    layer = outermost[found.operator[first]]
    begin, end = until[layer], _behind(rank, outermost, outermost[found.operator[first + 2]])
    called = _ended_before(at, until, outermost, layer)
    kept = end > begin
    return Adapters(called[kept], at[layer][kept], begin[kept], end[kept], int(columns[down][first].max()))


def _ended_before(
    at: NDArray[np.int64], until: NDArray[np.int64], outermost: NDArray[np.int64], calls: NDArray[np.int64]
) -> NDArray[np.int64]:
    """When the last operator before each of some calls ended, on any thread; the call's begin, where there is none."""
    own = np.flatnonzero(outermost == np.arange(len(outermost)))
    ends = np.sort(until[own])
    place = np.searchsorted(ends, at[calls], side="right") - 1
    return np.where(place >= 0, ends[np.maximum(place, 0)], at[calls])


def _outermost(rank: RankCase) -> NDArray[np.int64]:
    """For each operator the one that is called by no other, around it."""
    parent = rows_of(rank.trace.operators["parent"]).astype(np.int64)
    out: NDArray[np.int64] = np.arange(len(parent), dtype=np.int64)
    for _ in range(_DEEPEST):
        above = parent[out]
        if not (above >= 0).any():
            break
        out = np.where(above >= 0, above, out)
    return out


def _behind(rank: RankCase, outermost: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the scaling and the addition behind some operators end."""
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()
    own = np.flatnonzero(outermost == np.arange(len(outermost)))
    own = own[np.argsort(at[own], kind="stable")]
    names = distinct(table["name"])
    arithmetic = np.array([name in _BEHIND for name in names], np.bool_)[codes(table["name"])]
    threads = table["thread"].to_numpy()
    place = np.searchsorted(at[own], at[last])
    end: NDArray[np.int64] = at[last] + table["duration_ns"].to_numpy()[last]
    for step in range(1, _MOST_BEHIND + 1):
        following = own[np.minimum(place + step, len(own) - 1)]
        goes_on = arithmetic[following] & (threads[following] == threads[last]) & (at[following] >= end)
        end = np.where(goes_on, at[following] + table["duration_ns"].to_numpy()[following], end)
        if not goes_on.any():
            break
    return end
