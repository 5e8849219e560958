"""Finds rows by a key, or by a key and a time; a file may hold several rows for one key.

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
    order = _sorted(among)
    place = np.minimum(np.searchsorted(among, keys, sorter=order), len(among) - 1)
    rows = place if order is None else order[place]
    return np.where(among[rows] == keys, rows, _NO_ROW)


def last_row_before(
    keys: NDArray[np.int64], at: NDArray[np.int64], among: NDArray[np.int64], began: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each key its last row in ``among`` that began by ``at`` (ns), of equal rows the last; else -1.

    ``began`` ascends, so that the rows that began by an instant are a prefix.
    """
    if not len(among) or not len(keys):
        return np.full(len(keys), _NO_ROW, np.int64)
    by_then = np.searchsorted(began, at, side="right")
    order = _sorted(among)
    held = among if order is None else among[order]
    first_of_key = np.append(True, held[1:] != held[:-1])
    if first_of_key.all():
        places = np.minimum(np.searchsorted(held, keys), len(held) - 1)
    else:  # rows by key and place, as one number each
        width = len(among) + 1
        ranked = (np.cumsum(first_of_key) - 1) * width + (np.arange(len(among)) if order is None else order)
        rank = np.searchsorted(held[first_of_key], keys)
        places = np.maximum(np.searchsorted(ranked, rank * width + by_then) - 1, 0)
    rows = places if order is None else order[places]
    return np.where((among[rows] == keys) & (rows < by_then), rows, _NO_ROW)


def first_row_after(
    keys: NDArray[np.int64], at: NDArray[np.int64], among: NDArray[np.int64], began: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each key the first row of ``among`` with it that began from ``at`` (ns) on, of equals the first, else -1."""
    rows = last_row_before(keys, -at, among[::-1], -began[::-1])
    return np.where(rows >= 0, len(among) - 1 - rows, _NO_ROW)


def _sorted(values: NDArray[np.int64]) -> NDArray[np.intp] | None:
    """The rows by value, equals in their order; `None` where they are so already."""
    return None if bool((values[1:] >= values[:-1]).all()) else np.argsort(values, kind="stable")
