"""Which ranks belong together, by the groups that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise


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


def stages(pairs: Iterable[Sequence[int]]) -> dict[int, int]:
    """By rank its stage, from the pairs that pass messages to each other; empty unless all pairs make chains alike.

    Ranks are numbered from the first stage to the last in every framework. Rings are no chains.

    >>> stages([[0, 2], [2, 0], [2, 4], [1, 3], [3, 5]]), stages([[0, 1], [1, 2], [2, 0]])
    ({0: 0, 2: 1, 4: 2, 1: 0, 3: 1, 5: 2}, {})
    """
    edges = {tuple(sorted(pair)) for pair in pairs}
    chains = joined(edges)
    lengths = {len(chain) for chain in chains}
    # n ranks with n - 1 links, each to the next
    linked = sum(len(chain) - 1 for chain in chains) == len(edges)
    in_order = all((one, other) in edges for chain in chains for one, other in pairwise(chain))
    if len(lengths) != 1 or not linked or not in_order:
        return {}
    return {rank: stage for chain in chains for stage, rank in enumerate(chain)}
