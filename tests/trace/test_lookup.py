"""Rows by key and time, against what going through all of them gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whystall.trace.lookup import first_row_after, first_row_of, last_row_before

_EVENTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=12)


def _columns(events: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([key for key, _ in events], np.int64), np.array([at for _, at in events], np.int64)


@given(_EVENTS, _EVENTS)
def test_rows_are_those_that_a_walk_through_all_finds(
    wanted: list[tuple[int, int]], held: list[tuple[int, int]]
) -> None:
    keys, at = _columns(wanted)
    held = sorted(held, key=lambda event: event[1])
    among, began = _columns(held)
    rows = range(len(held))
    for number, (key, instant) in enumerate(wanted):
        same = [row for row in rows if held[row][0] == key]
        before = max(((held[row][1], row) for row in same if held[row][1] <= instant), default=(0, -1))
        after = min(((held[row][1], row) for row in same if held[row][1] >= instant), default=(0, -1))
        assert first_row_of(keys, among)[number] == (same[0] if same else -1)
        assert last_row_before(keys, at, among, began)[number] == before[1]
        assert first_row_after(keys, at, among, began)[number] == after[1]
