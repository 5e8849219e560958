"""Memory: peaks and course of each allocator's memory, and its holders, from its memory events."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.memory_holders import Holding, held_at_peak, places_of
from whystall.analysis.memory_results import MemoryPeak
from whystall.analysis.modules import ModulePlaces
from whystall.analysis.operators import OperatorTree
from whystall.trace.model import Trace

# c10::DeviceType (c10/core/DeviceType.h), as the events' "Device Type" gives it.
_DEVICE_TYPES: Final = {
    0: "cpu",
    1: "cuda",
    6: "hip",
    9: "xla",
    12: "xpu",
    13: "mps",
    18: "hpu",
    19: "mtia",
    20: "privateuse1",
}
_CURVE_POINTS: Final = 400
_UNTOLD: Final = Holding([], [], 0, "the memory events carry no totals")


def memory_results(
    trace: Trace, rank: int, origin_ns: int, tree: OperatorTree, modules: ModulePlaces
) -> list[MemoryPeak]:
    """One row per device whose allocator reported; totals are ``None`` where old traces carry none."""
    table = trace.memory_events
    if table.is_empty():
        return []
    places = places_of(trace, tree, modules)
    out = []
    keyed = table.with_columns(pl.col("device_type").fill_null(-1), pl.col("device").fill_null(-1))
    for (kind, device), group in keyed.group_by(["device_type", "device"], maintain_order=True):
        allocated = group["total_allocated"].drop_nulls()
        reserved = group["total_reserved"].drop_nulls()
        at = int(np.argmax(allocated.to_numpy())) if len(allocated) == len(group) else None
        found = _UNTOLD if at is None else held_at_peak(group, at, places)
        out.append(
            MemoryPeak(
                rank=rank,
                device_type=_DEVICE_TYPES.get(int(str(kind)), f"type {kind}"),
                device=int(str(device)),
                events=len(group),
                peak_allocated_bytes=_peak(allocated),
                peak_reserved_bytes=_peak(reserved),
                allocated_start_bytes=int(allocated[0]) if len(allocated) else None,
                allocated_end_bytes=int(allocated[-1]) if len(allocated) else None,
                curve=_curve(group.filter(pl.col("total_allocated").is_not_null()), origin_ns),
                peak_ns=None if at is None else int(group["ts_ns"][at]) - origin_ns,
                held=found.held,
                holders=found.holders,
                holders_omitted=found.omitted,
                holders_unknown_because=found.unknown_because,
            )
        )
    return sorted(out, key=lambda row: (row.device_type, row.device))


def _peak(totals: pl.Series) -> int | None:
    return int(np.max(totals.to_numpy())) if len(totals) else None


def _curve(events: pl.DataFrame, origin_ns: int) -> list[tuple[int, int]]:
    """Time and bytes; where there are too many events, the highest of each stretch, so that peaks stay."""
    time = events["ts_ns"].to_numpy() - origin_ns
    held = events["total_allocated"].to_numpy()
    rows = _highest_of_stretches(held) if len(held) > _CURVE_POINTS else np.arange(len(held))
    return [(int(time[row]), int(held[row])) for row in rows]


def _highest_of_stretches(held: NDArray[np.int64]) -> NDArray[np.intp]:
    edges = np.linspace(0, len(held), _CURVE_POINTS + 1).astype(np.intp)
    return np.array([begin + np.argmax(held[begin:end]) for begin, end in pairwise(edges.tolist())])
