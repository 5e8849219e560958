from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall._native import match_allocations

NONE, ALLOCATES, FREES, SETTLES = range(4)
ROWS = st.lists(st.tuples(st.integers(NONE, SETTLES), st.integers(-2, 3)), max_size=40)


def brute(rows: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int], int]:
    """Each allocation with its end, looked for from its row on; then the first rows of addresses that free."""
    pairs, lost = [], 0
    for begin, (move, address) in enumerate(rows):
        if move != ALLOCATES:
            continue
        later = [row for row in range(begin + 1, len(rows)) if rows[row][1] == address and rows[row][0] != NONE]
        end = later[0] if later else len(rows)
        lost += bool(later) and rows[end][0] == ALLOCATES
        pairs.append((begin, end))
    asked = any(move == FREES for move, _ in rows)
    unmatched = []
    for row, (move, address) in enumerate(rows):
        first = all(other != address or kind == NONE for kind, other in rows[:row])
        if first and (move == FREES or (move == SETTLES and not asked)):
            unmatched.append(row)
    return pairs, unmatched, lost


@given(ROWS)
def test_a_free_belongs_to_the_last_allocation_at_its_address(rows: list[tuple[int, int]]) -> None:
    move = np.array([move for move, _ in rows], np.int8)
    address = np.array([address << 40 for _, address in rows], np.int64)

    begin, end, unmatched, lost = match_allocations(move, address)

    assert (list(zip(begin.tolist(), end.tolist(), strict=True)), unmatched.tolist(), lost) == brute(rows)


def test_many_addresses_are_kept_apart() -> None:
    count = 5000
    address = np.tile(np.arange(count, dtype=np.int64) * 512, 2)
    move = np.repeat(np.array([ALLOCATES, FREES], np.int8), count)

    begin, end, unmatched, lost = match_allocations(move, address)

    assert (end - begin).tolist() == [count] * count
    assert (len(unmatched), lost) == (0, 0)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="same length"):
        match_allocations(np.zeros(2, np.int8), np.zeros(3, np.int64))
