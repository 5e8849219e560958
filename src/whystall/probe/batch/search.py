"""The batches to probe, and the meaning of their throughput: decided from predictions and from runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whystall.model.prediction.results import BatchPeak
from whystall.probe.batch.results import Attempt, BatchRun

MOST_ATTEMPTS: Final = 3
NEAR_BEST: Final = 0.9
"""The share of the highest throughput that the knee reaches: more of it is expensive in memory."""
_WORTH_ANOTHER: Final = 0.05  # a batch that is larger by less than this is not worth a probe
_AFTER_DEATHS: Final = (1.0, 0.9, 0.5)  # of the memory: a process that died does not report how much it lacked


def next_batch(
    attempts: Sequence[Attempt], predicted: Sequence[BatchPeak], room_bytes: int, *, divides: int | None = None
) -> int | None:
    """The batch to probe after ``attempts``; ``None`` where none is worth it.

    The ratio of measured to predicted memory corrects the prediction for the next one, upwards or downwards.
    ``divides`` is a number of samples that batches have to make up.
    """
    if not attempts or len(attempts) >= MOST_ATTEMPTS:
        return None
    fits = max((one.batch for one in attempts if one.fits), default=0)
    beyond = min((one.batch for one in attempts if not one.fits), default=None)
    deaths = sum(one.held_bytes is None for one in attempts)
    room = room_bytes * _AFTER_DEATHS[deaths]
    measured = sorted((one.batch, one.held_bytes) for one in attempts if one.held_bytes is not None)
    lines = [(one.batch, one.peak_bytes) for one in predicted]
    if len(measured) > 1:
        lines = measured
    elif measured:
        room *= _predicted_over_held(attempts)
    guess = batch_at(lines, room)
    if beyond is not None:
        guess = min(guess, beyond - 1)
    if divides is not None:
        guess = next((batch for batch in range(min(guess, divides), 0, -1) if divides % batch == 0), 0)
    return guess if guess >= 1 and guess > fits * (1 + _WORTH_ANOTHER) else None


def _predicted_over_held(attempts: Sequence[Attempt]) -> float:
    """The ratio of the prediction to the memory of the one attempt that was measured."""
    return next(one.predicted_bytes / one.held_bytes for one in attempts if one.held_bytes)


def batch_at(levels: Sequence[tuple[int, int]], n_bytes: float) -> int:
    """The largest batch that holds no more than ``n_bytes``, by lines through batches and their bytes in order.

    >>> batch_at([(8, 100), (16, 180), (32, 380)], 280)
    24
    """
    if len(levels) == 1:
        return int(levels[0][0] * n_bytes / levels[0][1])
    place = max((at for at, (_, held) in enumerate(levels[:-1]) if held <= n_bytes), default=0)
    (batch, held), (more, higher) = levels[place], levels[place + 1]
    return more if higher <= held else int(batch + (n_bytes - held) * (more - batch) / (higher - held))


def predicted_bytes(predicted: Sequence[BatchPeak], batch: int) -> int:
    """The predicted memory of a batch, by lines through the predictions."""
    if len(predicted) == 1:
        return predicted[0].peak_bytes * batch // predicted[0].batch
    place = max((at for at, one in enumerate(predicted[:-1]) if one.batch <= batch), default=0)
    low, high = predicted[place], predicted[place + 1]
    return low.peak_bytes + (high.peak_bytes - low.peak_bytes) * (batch - low.batch) // (high.batch - low.batch)


def curve_batches(largest: int) -> tuple[int, ...]:
    """The batches of one probe: the largest, then halves of it down to one sample.

    >>> curve_batches(100)
    (100, 50, 25, 12, 6, 3, 1)
    """
    found = [largest]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return tuple(found)


def knee_of(curve: Sequence[BatchRun]) -> int | None:
    """The smallest batch that reaches nine tenths of the highest throughput; ``None`` where only one was measured."""
    if len(curve) < 2:
        return None
    best = max(one.samples_per_s for one in curve)
    return min(one.batch for one in curve if one.samples_per_s >= NEAR_BEST * best)
