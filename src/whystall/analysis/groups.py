"""Which ranks belong together, by the groups that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def joined(groups: Iterable[Sequence[int]]) -> list[list[int]]:
    """The ranks that groups join, directly or through others; in order, as are their sets.

    >>> joined([[0, 1], [2, 3], [3, 4]])
    [[0, 1], [2, 3, 4]]
    """
    above: dict[int, int] = {}

    def top(rank: int) -> int:
        while above.setdefault(rank, rank) != rank:
            rank = above[rank]
        return rank

    for group in groups:
        for other in group:
            above[top(other)] = top(group[0])
    found: dict[int, list[int]] = {}
    for rank in sorted(above):
        found.setdefault(top(rank), []).append(rank)
    return sorted(found.values())
