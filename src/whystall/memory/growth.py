"""Whether each step leaves more memory allocated than the one before, and the lines whose allocations stay."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.lifetimes import Lifetimes
from whystall.memory.phases import Phases
from whystall.memory.results import Growth, GrowthSite
from whystall.memory.stacks import Stacks

__all__ = ["find_growth"]

_WARM_UP: Final = 2  # steps that make gradients and the optimizer's state
_LEAST: Final = 3  # steps after those, each of which must grow
_MOST_SITES: Final = 10


def find_growth(
    alive: Lifetimes, course: NDArray[np.int64], phases: Phases, stacks: Stacks
) -> tuple[Growth | None, str | None]:
    """The growth, or the reason for none."""
    if phases.known_by is None:
        return None, "no steps are marked, and none are evident"
    bounds = phases.steps[_WARM_UP:]
    if len(bounds) <= _LEAST:
        return (
            None,
            f"{len(phases.steps)} steps are too few: the first {_WARM_UP} make what stays, {_LEAST} more must grow",
        )
    at_bounds = course[np.maximum(bounds - 1, 0)]
    change = np.diff(at_bounds)
    if (change <= 0).any():
        return None, "some step after the first leaves no more allocated than the one before"
    return Growth(
        bytes_per_step=int(np.median(change)),
        steps=len(change),
        known_by=phases.known_by,
        sites=_sites(alive, bounds, stacks),
    ), None


def _sites(alive: Lifetimes, bounds: NDArray[np.int64], stacks: Stacks) -> tuple[GrowthSite, ...]:
    """The lines with allocations from most of these steps that live on at the end of the last one."""
    steps = len(bounds) - 1
    stays = (alive.begin >= bounds[0]) & (alive.begin < bounds[-1]) & (alive.end >= bounds[-1])
    step = np.searchsorted(bounds, alive.begin[stays], side="right")
    site = stacks.sites_of(alive.stack[stays])
    size = alive.size[stays]
    out = []
    for number in np.unique(site).tolist():
        own = site == number
        seen = len(np.unique(step[own]))
        if seen * 2 <= steps:  # memory of the last step alone does not grow
            continue
        where = stacks.sites[number] if number >= 0 else None
        line = None if where is None else where.place
        function = None if where is None else where.function
        out.append(GrowthSite(line, function, int(size[own].sum()) // steps, seen))
    return tuple(sorted(out, key=lambda one: -one.bytes_per_step)[:_MOST_SITES])
