"""Which hang follows from which: a rank that never comes may itself be waiting in another group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whystall.fleet.hang_results import Hang, Kind

__all__ = ["in_order"]


def in_order(found: Sequence[Hang]) -> list[Hang]:
    """The hangs with their causes, causes first; hangs that wait for each other become ``DIFFERENT_ORDER``."""
    causes = [_cause(index, hang, found) for index, hang in enumerate(found)]
    circle = {index for index in range(len(found)) if _is_in_circle(index, causes)}
    depth = [_depth(index, causes) for index in range(len(found))]
    order = sorted(range(len(found)), key=lambda index: (depth[index], index not in circle, index))
    placed = {old: new for new, old in enumerate(order)}
    return [
        replace(
            found[old],
            kind=Kind.DIFFERENT_ORDER if old in circle else found[old].kind,
            because=placed[cause] if (cause := causes[old]) is not None else None,
        )
        for old in order
    ]


def _cause(index: int, hang: Hang, found: Sequence[Hang]) -> int | None:
    """The hang in which a rank at fault here waits, itself without fault."""
    if hang.kind is not Kind.MISSING_ENTER or hang.shift is not None:
        return None
    for other, one in enumerate(found):
        if other != index and any(rank in one.waiting and rank not in one.ranks for rank in hang.ranks):
            return other
    return None


def _is_in_circle(index: int, causes: Sequence[int | None]) -> bool:
    at = causes[index]
    for _ in causes:
        if at is None:
            return False
        if at == index:
            return True
        at = causes[at]
    return False


def _depth(index: int, causes: Sequence[int | None]) -> int:
    """How many hangs lie between this one and where it all began; 0 for a circle."""
    seen: list[int] = []
    at: int | None = index
    while at is not None and at not in seen:
        seen.append(at)
        at = causes[at]
    return len(seen) - 1 - (0 if at is None else len(seen) - 1 - seen.index(at))
