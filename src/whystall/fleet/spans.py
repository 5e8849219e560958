"""Many ranks in few words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_MOST_SPANS: Final = 8


def spans(ranks: Iterable[int], most: int = _MOST_SPANS) -> str:
    """Ranks as spans.

    >>> spans([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    >>> spans(range(0, 40, 2), most=3)
    '0, 2, 4 and 17 more'
    """
    found: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    told = [str(first) if first == last else f"{first}-{last}" for first, last in found[:most]]
    more = sum(last - first + 1 for first, last in found[most:])
    return ", ".join(told) + (f" and {more:,} more" if more else "")
