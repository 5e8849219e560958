"""Finding rows by a key, or by a key and a time, of which a file may hold several.

Plain sorting: joins of data frames bring some ten megabytes of code into memory for it and take longer on most traces.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NO_ROW = -1


def first_row_of(keys: NDArray[np.int64], among: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of ``keys`` the first row of ``among`` that holds it, else -1."""
    if not len(among) or not len(keys):
        return np.full(len(keys), _NO_ROW, np.int64)
    order = np.argsort(among, kind="stable")
    place = np.searchsorted(among, keys, sorter=order)
    rows = order[np.minimum(place, len(order) - 1)]
    return np.where(among[rows] == keys, rows, _NO_ROW)


def last_row_before(
    keys: NDArray[np.int64], at: NDArray[np.int64], among: NDArray[np.int64], began: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each key the last row of ``among`` with it that began by ``at`` (ns), of equals the last, else -1."""
    side = np.repeat(np.array([0, 1], np.int8), [len(among), len(keys)])
    key = np.concatenate([among, keys])
    order = np.lexsort((side, np.concatenate([began, at]), key))
    is_row = order < len(among)
    # The last row of ``among`` in this order up to each place, which is of the same key or there is none.
    before = np.maximum.accumulate(np.where(is_row, np.arange(len(order)), -1))
    wanted = np.flatnonzero(~is_row)
    before = before[wanted]
    seeker = order[wanted]
    found = order[np.maximum(before, 0)]
    found = np.where((before >= 0) & (key[found] == key[seeker]), found, _NO_ROW)
    rows = np.empty(len(keys), np.int64)
    rows[seeker - len(among)] = found
    return rows


def first_row_after(
    keys: NDArray[np.int64], at: NDArray[np.int64], among: NDArray[np.int64], began: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each key the first row of ``among`` with it that began from ``at`` (ns) on, of equals the first, else -1."""
    rows = last_row_before(keys, -at, among[::-1], -began[::-1])
    return np.where(rows >= 0, len(among) - 1 - rows, _NO_ROW)
