"""The sizes of the tensors that a call was given, as a recording has them (``[[3, 4], [], [[5], [6]]]``)."""

from __future__ import annotations

from math import prod
from typing import Any, Final

from whystall.json_text import parse_json

Shape = tuple[int, ...]

_LARGEST: Final = 1 << 40


def sizes_by_argument(dims: str | None) -> tuple[tuple[Shape, ...], ...]:
    """Per argument the sizes of its tensors: of one, or of those in a list.

    None where it is no tensor, has no dimensions, or where the recording is damaged.
    """
    try:
        given = parse_json(dims or "[]")
    except ValueError:
        return ()
    return tuple(_sizes(one) for one in given) if isinstance(given, list) else ()


def all_sizes(dims: str | None) -> tuple[Shape, ...]:
    """The sizes of all tensors, those in lists among them."""
    return tuple(size for sizes in sizes_by_argument(dims) for size in sizes)


def first_size(dims: str | None) -> Shape:
    """The size of the first argument where that is a tensor with dimensions, else nothing."""
    first = sizes_by_argument(dims)[:1]
    return first[0][0] if first and len(first[0]) == 1 else ()


def first_elements(dims: str | None) -> int:
    """The elements of the first argument, 0 where it is no tensor with dimensions."""
    size = first_size(dims)
    return prod(size) if size else 0


def _sizes(one: Any) -> tuple[Shape, ...]:
    if _is_size(one):
        return (tuple(one),)
    return tuple(tuple(each) for each in one if _is_size(each)) if isinstance(one, list) else ()


def _is_size(one: Any) -> bool:
    return isinstance(one, list) and bool(one) and all(type(size) is int and 0 <= size < _LARGEST for size in one)
