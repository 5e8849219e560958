"""Many ranks in few words."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from whystall.trace.metadata import MOST_RANKS

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


def without_recording(size: int | None, there: Collection[int]) -> str | None:
    """The sentence on ranks without a recording in a job of that size, if there are any.

    >>> without_recording(4, [0, 1, 2])
    'the job has 4 ranks, and 1 of them has no recording here: 3'
    """
    if size is None or not 0 < size <= MOST_RANKS:  # a damaged file may hold any number
        return None
    gone = set(range(size)).difference(there)
    if not gone:
        return None
    have = "has" if len(gone) == 1 else "have"
    return f"the job has {size:,} ranks, and {len(gone):,} of them {have} no recording here: {spans(gone)}"
