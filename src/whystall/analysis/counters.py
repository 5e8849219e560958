"""Device counters: over the window, over the device's busy time, and over its idle time.

A value holds from its time until the next one of its counter; the last holds as long as one usually does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis import intervals
from whystall.analysis.device import DeviceAccount
from whystall.analysis.intervals import Times
from whystall.analysis.results import Result
from whystall.trace.model import Trace

Values = NDArray[np.float64]


class DeviceCounter(Result, frozen=True, kw_only=True):
    """One counter over the window of its device; over all windows if the device is unknown or ran nothing.

    Means and percentiles weigh a value by the time that it holds: ``covered_ns`` of the window in all, in which
    ``samples`` values hold. ``busy_mean`` covers the time in which anything ran on the device, ``idle_mean`` the rest;
    a value that holds through both counts in each by its part. ``unit`` is ``None`` where the recording does not state
    it.
    """

    rank: int
    device: int | None
    name: str
    unit: str | None
    samples: int
    covered_ns: int
    mean: float | None
    p5: float | None
    p95: float | None
    busy_mean: float | None
    idle_mean: float | None


def counter_results(trace: Trace, accounts: Mapping[int, DeviceAccount], rank: int) -> list[DeviceCounter]:
    """A row for each counter with a value in the window: devices in order, their counters as they come in the file."""
    if trace.counters.is_empty() or not accounts:
        return []
    windows = [account.events.window for account in accounts.values()]
    whole = min(begin for begin, _ in windows), max(end for _, end in windows)
    groups = trace.counters.partition_by("device", "name", as_dict=True, maintain_order=True)
    rows = [_row(rank, device, name, own, accounts.get(device), whole) for (device, name), own in groups.items()]
    kept = [row for row in rows if row.samples]
    return sorted(kept, key=lambda row: (row.device is None, row.device or 0))


def _row(
    rank: int, device: int | None, name: str, own: pl.DataFrame, account: DeviceAccount | None, whole: tuple[int, int]
) -> DeviceCounter:
    window = whole if account is None else account.events.window
    values = own["value"].to_numpy()
    begin, end = holds(own["ts_ns"].to_numpy(), window)
    held = end - begin
    busy = None if account is None else account.timeline.cumulative(intervals.ANY).within(begin, end)
    return DeviceCounter(
        rank=rank,
        device=device,
        name=name,
        unit=own["unit"][0],
        samples=int(np.count_nonzero(held)),
        covered_ns=int(held.sum()),
        mean=weighted_mean(values, held),
        p5=weighted_percentile(values, held, 5),
        p95=weighted_percentile(values, held, 95),
        busy_mean=None if busy is None else weighted_mean(values, busy),
        idle_mean=None if busy is None else weighted_mean(values, held - busy),
    )


def holds(start: Times, window: tuple[int, int]) -> tuple[Times, Times]:
    """Begin and end of the time that each value holds within a window; ``start`` is sorted.

    >>> [times.tolist() for times in holds(np.array([0, 10, 20, 40]), (5, 45))]
    [[5, 10, 20, 40], [10, 20, 40, 45]]
    """
    usual = int(np.median(np.diff(start))) if len(start) > 1 else 0
    end = np.append(start[1:], start[-1:] + usual)
    return np.clip(start, *window), np.clip(end, *window)


def weighted_mean(values: Values, held: Times) -> float | None:
    """The mean of values that each hold for a time; ``None`` where none holds for any.

    >>> weighted_mean(np.array([1.0, 4.0]), np.array([2, 1]))
    2.0
    """
    total = int(held.sum())
    mean = float((values * (held / total)).sum()) if total else math.nan
    return mean if math.isfinite(mean) else None


def weighted_percentile(values: Values, held: Times, percent: int) -> float | None:
    """The least value that is not exceeded for ``percent`` % of the time; ``None`` where no value holds for any.

    >>> weighted_percentile(np.array([3.0, 1.0, 2.0]), np.array([90, 5, 5]), 5)
    1.0
    """
    kept = held > 0
    values, held = values[kept], held[kept]
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    until = np.cumsum(held[order])
    least = -(-int(until[-1]) * percent // 100)
    return float(values[order][np.searchsorted(until, least)])
