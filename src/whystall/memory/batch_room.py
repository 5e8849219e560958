"""The limit of a larger batch: memory at a step's peak that grows with it, and the rest of the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.memory.holders import held_by
from whystall.memory.lifetimes import Lifetimes
from whystall.memory.phases import Phases
from whystall.memory.purpose import Judge
from whystall.memory.results import BatchRoom, Category, OutOfMemory

__all__ = ["find_room"]

_GROWS: Final = frozenset({Category.ACTIVATIONS, Category.INPUT})
_STAYS: Final = frozenset({Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE})
_LEAST_STEPS: Final = 3  # one that makes the optimizer's state, a whole one, and the beginning of the next
_MOST_UNTOLD: Final = 0.5  # a share of the peak: with more of it unknown, the limit of the batch is unknown


def find_room(
    alive: Lifetimes,
    course: NDArray[np.int64],
    phases: Phases,
    judge: Judge,
    outs: Sequence[OutOfMemory],
    device_bytes: int | None,
) -> tuple[BatchRoom | None, str | None]:
    """The parts of the fullest step's peak and the rest of the device, or the reason why they are unknown."""
    row, why_none = _fullest(course, phases)
    if row is None:
        return None, why_none
    rows = np.flatnonzero(alive.alive_at(row))
    there = alive.chosen(rows)
    held = {one.category: one.bytes for one in held_by(judge.of(rows, row).category, there.size)}
    peak = int(there.size.sum())
    grows, stays = (sum(held.get(category, 0) for category in kinds) for kinds in (_GROWS, _STAYS))
    if not held.get(Category.ACTIVATIONS) or not held.get(Category.PARAMETERS):
        return None, "activations or parameters are not known"
    if peak - grows - stays > _MOST_UNTOLD * peak:
        return None, "of more than half of the peak it is not known whether it grows with the batch"
    outside = next((one.outside_bytes for one in reversed(outs) if one.outside_bytes is not None), None)
    left, why_unknown = _left(peak, outside, device_bytes)
    return BatchRoom(
        step=int(np.searchsorted(phases.steps, row, side="right")),
        peak_bytes=peak,
        grows_bytes=grows,
        stays_bytes=stays,
        untold_bytes=peak - grows - stays,
        outside_bytes=outside,
        left_bytes=left,
        left_unknown_because=why_unknown,
    ), None


def _fullest(course: NDArray[np.int64], phases: Phases) -> tuple[int | None, str | None]:
    """The row of the highest peak of a whole step.

    The last step is left out: the record may end before its allocations reach the backward pass.
    """
    steps = phases.steps
    if phases.known_by is None:
        return None, "no steps are marked, and none are evident"
    if len(steps) < _LEAST_STEPS or steps[-1] <= steps[1]:
        return None, f"{len(steps)} steps are too few: the first makes what stays, and the last may not be whole"
    begin, end = int(steps[1]), int(steps[-1])
    return begin + int(np.argmax(course[begin:end])), None


def _left(peak: int, outside: int | None, device_bytes: int | None) -> tuple[int | None, str | None]:
    """Upper bound of free memory: the device less the peak and less the memory known to lie outside torch."""
    if device_bytes is None:
        return None, "a snapshot does not hold the device's capacity: give --device-memory"
    left = device_bytes - peak - (outside or 0)
    return (None, "more was allocated than the device is said to have") if left < 0 else (left, None)
