"""Latency and bandwidth of a collective from its times at several sizes: t = alpha + S / beta."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from whystall.probe.comm.results import Collective, Fit, Measured, Residual
from whystall.vocabulary.collectives import convention

_FEWEST: Final = 3


def fits(results: Iterable[Measured]) -> list[Fit]:
    """The fit of each kind of collective, in the order in which they first come."""
    by_kind: dict[Collective, list[Measured]] = {}
    for one in results:
        by_kind.setdefault(one.collective, []).append(one)
    return [_fit(kind, rows) for kind, rows in by_kind.items()]


def _fit(kind: Collective, rows: Sequence[Measured]) -> Fit:
    sizes, times = [float(row.bytes) for row in rows], [float(row.time_ns) for row in rows]
    if len(set(sizes)) < _FEWEST:
        return _no_fit(kind, f"{len(set(sizes))} sizes were measured, and a fit needs {_FEWEST}")
    latency, per_byte = line(sizes, times)
    if per_byte <= 0:
        return _no_fit(kind, "larger messages took no longer than small ones")
    fitted = [latency + per_byte * size for size in sizes]
    shares = [(calculated - time) / time for calculated, time in zip(fitted, times, strict=True)]
    weights = [1 / time**2 for time in times]
    mean = sum(weight * time for weight, time in zip(weights, times, strict=True)) / sum(weights)
    scatter = sum(((mean - time) / time) ** 2 for time in times)
    return Fit(
        collective=kind,
        latency_ns=latency,
        bytes_per_s=1e9 / per_byte,
        bus_bytes_per_s=1e9 / per_byte * (convention(kind).bus_factor(rows[0].ranks) or 0.0),
        r2=1 - sum(share**2 for share in shares) / scatter if scatter > 0 else None,
        residuals=[Residual(bytes=row.bytes, share=share) for row, share in zip(rows, shares, strict=True)],
    )


def line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Latency and time per byte with the least squares of relative errors; a latency below none is none.

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


def _no_fit(kind: Collective, why: str) -> Fit:
    return Fit(
        collective=kind, latency_ns=None, bytes_per_s=None, bus_bytes_per_s=None, r2=None, residuals=[],
        unknown_because=why,
    )  # fmt: skip
