"""A stretch of a trace as a trace of its own: small enough to send and open where the whole is too large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.link import HOST_TABLES, nest_host, rows_of
from whystall.trace.model import Trace

# Links to rows that the stretch does not hold, or that are others there.
_LINKS: Final = ("parent", "frame", "forward", "operator", "module")
_EMPTIED: Final = (
    "device_annotations",
    "collectives",
    "memory_events",
    "counters",
    "flows",
    "synchronizations",
    "other_events",
    "extra_arguments",
)


def excerpt(trace: Trace, window: tuple[int, int]) -> Trace:
    """The events that overlap a window (ns, the trace's own clock), and the calls that launched device events in it.

    Each is kept whole, and so are all steps. Only links to launches are kept between tables.
    """
    device = _overlapping(trace.device_events, window)
    launch = rows_of(trace.device_events["launch"])[device]
    kept = {name: _overlapping(getattr(trace, name), window) for name in HOST_TABLES}
    calls = kept["runtime_calls"]
    calls[launch[launch >= 0]] = True
    tables = {name: _chosen(getattr(trace, name), rows) for name, rows in kept.items()}
    moved = pl.Series(np.cumsum(calls, dtype=np.uint32), dtype=pl.UInt32) - 1
    on_device = trace.device_events["launch"].filter(pl.Series(device))
    changed: dict[str, Any] = tables | {name: getattr(trace, name).head(0) for name in _EMPTIED}
    return replace(
        trace,
        **changed,
        device_events=_chosen(trace.device_events, device).with_columns(launch=moved.gather(on_device)),
        host_order=nest_host(tables).order,
    )


def _overlapping(table: pl.DataFrame, window: tuple[int, int]) -> NDArray[np.bool_]:
    start = table["ts_ns"].to_numpy()
    inside: NDArray[np.bool_] = (start < window[1]) & (start + table["duration_ns"].to_numpy() > window[0])
    return inside


def _chosen(table: pl.DataFrame, rows: NDArray[np.bool_]) -> pl.DataFrame:
    """These rows, without links."""
    return table.filter(pl.Series(rows)).with_columns(
        pl.lit(None, table.schema[name]).alias(name) for name in _LINKS if name in table.columns
    )
