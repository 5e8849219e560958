"""Shares of a whole as they are shown."""

from __future__ import annotations

from collections.abc import Iterable


def tenths(parts: Iterable[int]) -> tuple[int, ...]:
    """Tenths of a percent per part that add up to 1000 exactly, by the largest remainder.

    >>> tenths([1, 1, 1])
    (334, 333, 333)
    """
    values = tuple(parts)
    whole = sum(values)
    if whole <= 0:
        return (0,) * len(values)
    floors = [value * 1000 // whole for value in values]
    by_remainder = sorted(range(len(values)), key=lambda i: (-(values[i] * 1000 % whole), i))
    for index in by_remainder[: 1000 - sum(floors)]:
        floors[index] += 1
    return tuple(floors)
