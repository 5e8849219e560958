"""Sizes of a call's tensors, read from what recordings hold, even if that is damaged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.trace.recorded_sizes import all_sizes, first_elements, first_size, sizes_by_argument

sizes = st.lists(st.integers(0, 2**20), min_size=1, max_size=4)


@given(st.lists(st.one_of(sizes, st.just([]), st.lists(sizes, min_size=1, max_size=3)), max_size=5))
def test_what_was_given_is_read_back(arguments: list[list[object]]) -> None:
    read = sizes_by_argument(json.dumps(arguments))
    assert len(read) == len(arguments)
    for one, found in zip(arguments, read, strict=True):
        expected = [one] if one and isinstance(one[0], int) else one
        assert [list(size) for size in found] == expected
    assert all_sizes(json.dumps(arguments)) == tuple(size for found in read for size in found)


@pytest.mark.parametrize(("dims", "size", "elements"), [("[[3, 4], [5]]", (3, 4), 12), ("[[], [5]]", (), 0)])
def test_the_first_argument(dims: str, size: tuple[int, ...], elements: int) -> None:
    assert first_size(dims) == size
    assert first_elements(dims) == elements


@pytest.mark.parametrize(
    "dims",
    [
        None,
        "",
        "{",
        "3",
        '{"a": 1}',
        "[-1]",
        "[[-1, 2]]",
        "[[1.5]]",
        '[["x"]]',
        "[[true]]",
        "[[1e400]]",
        f"[[{2**70}]]",
        "[[[[3]]]]",
        "[" * 100_000,
    ],
)
def test_what_is_damaged_has_none(dims: str | None) -> None:
    assert not all_sizes(dims)
    assert not first_size(dims)
    assert first_elements(dims) == 0
