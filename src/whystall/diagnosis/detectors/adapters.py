"""Low-rank adapters (LoRA) that are computed beside the layers they belong to, where nothing learns.

A layer multiplies its input by its weight, then the same input by two narrow matrices whose product has the weight's
shape, scales that and adds it. An adapter that is merged into the weight costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from whystall.diagnosis.detectors.outer_calls import outer_calls, places_among
from whystall.diagnosis.detectors.prefixes import products
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Times
from whystall.trace.columns import matching

_BETWEEN: Final = frozenset({"aten::to", "aten::_to_copy", "aten::dropout", "aten::native_dropout", "aten::detach"})
_BEHIND: Final = frozenset({"aten::mul", "aten::add", "aten::add_", "aten::mul_"}) | _BETWEEN
_MOST_BEHIND: Final = 3
_PRODUCTS: Final = 3
"""The layer's own product, the one down to the narrow dimension, and the one up from it."""


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


def adapters(rank: RankCase, *, widest: int, narrow: float) -> Adapters | None:
    """The adapters of a recording without a backward pass; ``None`` where there are none.

    Their inner dimension is at most ``widest``, and at least ``narrow`` times smaller than the layer's.
    """
    found = products(rank)
    if rank.trains or not len(found.at):
        return None
    table = rank.trace.operators
    roots = outer_calls(rank)
    at = table["ts_ns"].to_numpy()
    until = at + table["duration_ns"].to_numpy()
    place = places_among(rank, roots)[found.operator]
    here = place >= 0
    place, (rows, inner, columns) = place[here], found.size[here].T
    if len(place) < _PRODUCTS:
        return None
    base, down, up = slice(None, -2), slice(1, -1), slice(2, None)
    is_one = (rows[base] == rows[down]) & (rows[down] == rows[up]) & (inner[base] == inner[down])
    is_one &= (columns[base] == columns[up]) & (columns[down] == inner[up])
    is_one &= (columns[down] <= widest) & (columns[down] * narrow <= np.minimum(inner[base], columns[base]))
    is_one &= (place[base] < place[down]) & (place[down] < place[up])
    others = np.append(0, np.cumsum(~matching(table["name"], _BETWEEN.__contains__)[roots]))  # those before each call
    for one, next_one in ((base, down), (down, up)):
        is_one &= others[place[next_one]] == others[place[one] + 1]
    if not is_one.any():
        return None
    first, last = place[base][is_one], place[up][is_one]
    behind = matching(table["name"], _BEHIND.__contains__)[roots]
    goes_on = np.ones(len(last), np.bool_)
    for _ in range(_MOST_BEHIND):
        following = np.minimum(last + goes_on, len(roots) - 1)
        goes_on &= (following > last) & behind[following]
        last = np.where(goes_on, following, last)
    layer = at[roots[first]]
    called = np.where(first > 0, until[roots[np.maximum(first - 1, 0)]], layer)
    return Adapters(called, layer, until[roots[first]], until[roots[last]], int(columns[down][is_one].max()))
