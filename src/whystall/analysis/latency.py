"""A message's latency and time per byte: the line through times at several sizes."""

from __future__ import annotations

from collections.abc import Sequence


def line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Latency and time per byte with the least squares of relative errors; a negative latency counts as 0.

    Times span four orders of magnitude: absolute errors would leave the small sizes, and so the latency, to chance.

    >>> line([1, 10, 100], [12, 30, 210])
    (10.0, 2.0)
    """
    weights = [1 / time**2 for time in times]
    total = sum(weights)
    by_size = sum(weight * size for weight, size in zip(weights, sizes, strict=True))
    by_time = sum(weight * time for weight, time in zip(weights, times, strict=True))
    squares = sum(weight * size**2 for weight, size in zip(weights, sizes, strict=True))
    products = sum(weight * size * time for weight, size, time in zip(weights, sizes, times, strict=True))
    below = total * squares - by_size**2
    per_byte = (total * products - by_size * by_time) / below if below > 0 else 0.0
    latency = (by_time - per_byte * by_size) / total
    if latency < 0 or per_byte < 0:
        return 0.0, products / squares if latency < 0 else per_byte
    return round(latency, 6), round(per_byte, 12)
