"""Whether a job computes the same with other settings: its losses, step by step, against unchanged runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.verify.tune.results import Losses, Outcome, Seen, Settings

# The square root of the distance from 1 to the next number (`torch.finfo(…).eps`): half of a loss's digits stay.
_EPSILONS: Final = {"float32": 2.0**-23, "tf32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# Rounding errors grow with the steps: this many steps have the strict limit, later ones the tolerance.
_STRICT_STEPS: Final = 10
_TIMES: Final = 3.0  # the largest difference between a few runs of the same settings
_FEWEST: Final = 3
_SIGMAS: Final = 3.0
_SMALLEST: Final = 0.01  # of the largest loss: smaller ones need no more digits
# With these settings a job draws other random numbers in each step: then means are compared.
_DRAWS_OTHERWISE: Final = frozenset({
    "num_workers", "prefetch_factor", "persistent_workers", "compile", "memory_format", "precision",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of losses, and the place of a difference."""

    losses: Losses
    because: str | None = None


def compare(
    before: Sequence[Outcome],
    after: Sequence[Outcome],
    same: Sequence[Sequence[Outcome]],
    changed: Settings,
    *,
    tolerance: float,
    seen: Seen | None,
) -> Compared:
    """Whether runs with other settings have the losses of those before, by steps.

    ``same`` holds runs of the same settings each: three times their difference is allowed. ``changed`` is every
    difference from the command as given: it decides the number of digits to compare.
    """
    first, second = _matrix(before), _matrix(after)
    steps = min(first.shape[1], second.shape[1])
    if steps < _FEWEST:
        return Compared("not compared")
    lost = np.flatnonzero(np.isfinite(first[:, :steps]).all(0) & np.isinf(second[:, :steps]).any(0))
    if lost.size:
        return Compared("differ", f"the loss of step {lost[0] + 1} is not finite any more")
    old, new = (_known(losses[:, :steps]).mean(0) for losses in (first, second))
    usable = np.isfinite(old) & np.isfinite(new)
    if usable.sum() < _FEWEST:
        return Compared("not compared")
    scale = np.maximum(np.abs(old), _SMALLEST * np.abs(old[usable]).max())
    apart = np.where(usable, np.abs(new - old) / np.maximum(scale, np.finfo(np.float64).tiny), 0.0)
    spread = spread_of(same, steps)
    digits = _digits(changed, seen)
    strict = np.arange(steps) < _STRICT_STEPS
    allowed = np.maximum(np.where(strict, digits, max(digits, tolerance)), _TIMES * spread)
    over = np.flatnonzero(apart > allowed)
    if not over.size:
        return Compared("agree")
    if _DRAWS_OTHERWISE & changed.keys() and _agree_on_average(((new - old) / scale)[usable], tolerance):
        return Compared("agree on average")
    at = int(over[0])
    told = f"the loss of step {at + 1} is {old[at]:.6g} before and {new[at]:.6g} after"
    return Compared("differ", f"{told}; runs of the same settings differ there by {spread[at]:.2g} of it at the most")


def _agree_on_average(apart: NDArray[np.float64], tolerance: float) -> bool:
    """Whether differences of steps are around none, as those of other random numbers are."""
    if len(apart) < _STRICT_STEPS:
        return False
    error = float(apart.std(ddof=1)) / math.sqrt(len(apart))
    return abs(float(apart.mean())) <= _SIGMAS * error + tolerance


def _digits(changed: Settings, seen: Seen | None) -> float:
    """The share of a loss that roundings may change, by the least exact numbers that the job computes with."""
    kinds = {"float32", *(str(model.get("dtype")) for model in seen.models)} if seen is not None else {"float32"}
    if "precision" in changed or (seen is not None and seen.autocast):
        kinds.add("bfloat16")
    if "matmul_precision" in changed:
        kinds.add("tf32")
    return math.sqrt(max(_EPSILONS.get(kind, 0.0) for kind in kinds))


def spread_of(same: Sequence[Sequence[Outcome]], steps: int) -> NDArray[np.float64]:
    """The difference between runs of the same settings, as a share of the loss, up to each step."""
    found = np.zeros(steps)
    for runs in same:
        losses = _known(_matrix(runs)[:, :steps])
        if len(losses) < 2 or not losses.shape[1]:
            continue
        middle = np.abs(losses.mean(0))
        usable = np.isfinite(middle)
        if not usable.any():
            continue
        scale = np.maximum(middle, max(_SMALLEST * middle[usable].max(), np.finfo(np.float64).tiny))
        apart = np.where(usable, (losses.max(0) - losses.min(0)) / scale, 0.0)
        found[: len(apart)] = np.maximum(found[: len(apart)], apart)
    return np.maximum.accumulate(found)


def _known(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isfinite(losses), losses, math.nan)


def _matrix(runs: Sequence[Outcome]) -> NDArray[np.float64]:
    """A row for each run, as long as the shortest; missing losses are NaN, infinite ones infinite."""
    rows = [one.step_losses for one in runs if one.step_losses]
    steps = min(map(len, rows), default=0)
    return np.array([[_number(one) for one in row[:steps]] for row in rows], np.float64).reshape(len(rows), steps)


def _number(loss: float | str | None) -> float:
    return math.nan if loss is None else math.inf if isinstance(loss, str) else loss
