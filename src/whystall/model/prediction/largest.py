"""The largest batch whose step fits its device: a search over predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from whystall.errors import UsageError
from whystall.model.prediction.results import BatchPeak

MOST: Final = 2**20
"""Larger batches are not tried: other limits than memory end them."""
_FIRST: Final = (8, 16)
_BY_LINES: Final = 12


def largest_batch(predicted: Callable[[int], BatchPeak], most: int = MOST) -> tuple[tuple[BatchPeak, ...], int | None]:
    """The predicted batches, smallest first, and the largest up to ``most`` that fits.

    ``None``: not even one sample does.

    Memory beyond a fixed part grows in proportion to the batch, in each phase on its own: a line through two
    predictions extrapolates to a full device, and each further prediction corrects it. Raises ``UsageError`` where the
    batch makes no difference.
    """
    found = {batch: predicted(batch) for batch in (_FIRST if most > _FIRST[-1] else {1, most})}
    while True:
        fits = max((batch for batch, one in found.items() if one.fits), default=0)
        beyond = min((batch for batch, one in found.items() if not one.fits), default=most + 1)
        if beyond - fits == 1:
            break
        guess = _where_full(found, fits, beyond)
        found[guess] = predicted(guess)
    if most > 1 and len({one.peak_bytes for one in found.values()}) == 1:
        raise UsageError("the batch makes no difference to what a step holds: the factory has to take batch=")
    return tuple(found[batch] for batch in sorted(found)), fits or None


def _where_full(found: dict[int, BatchPeak], fits: int, beyond: int) -> int:
    """The batch at which the device is just not full, by a line through two predictions, between the two limits."""
    if len(found) > _BY_LINES:  # a bent line may lead to the same end repeatedly
        return (fits + beyond) // 2
    known = sorted(found)
    place = known.index(beyond) if beyond in found else len(known) - 1
    low, high = known[max(place - 1, 0)], known[max(place, 1)]
    slope = (found[low].spare_bytes - found[high].spare_bytes) / (high - low)
    guess = low + int(found[low].spare_bytes // slope) if slope > 0 else MOST
    return min(max(guess, fits + 1), beyond - 1)
