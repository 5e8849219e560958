"""Latency and bandwidth of a collective from its times at several sizes: t = alpha + S / beta."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from whystall.analysis.latency import line
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


def _no_fit(kind: Collective, why: str) -> Fit:
    return Fit(
        collective=kind, latency_ns=None, bytes_per_s=None, bus_bytes_per_s=None, r2=None, residuals=[],
        unknown_because=why,
    )  # fmt: skip
