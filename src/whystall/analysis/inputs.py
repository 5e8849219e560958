"""Input: how long the program waited for its data, and how much of that the device stood idle."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis import intervals
from whystall.analysis.device import DeviceAccount
from whystall.analysis.host_states import INPUT_NAME
from whystall.analysis.intervals import Cumulative
from whystall.analysis.results import InputWait
from whystall.trace.columns import matching
from whystall.trace.model import Trace


def input_results(trace: Trace, accounts: dict[int, DeviceAccount], rank: int) -> list[InputWait]:
    """One row per name of an input wait, as the profiler marks it.

    ``exposed_ns`` is the time in which no device of the process ran anything; without a device all of it.
    """
    waits = _waits(trace.annotations)
    if waits.is_empty():
        waits = _waits(trace.python_functions)
    busy = [account.timeline.cumulative(intervals.ANY) for account in accounts.values()]
    out = []
    for (name,), group in waits.group_by("name", maintain_order=True):
        begin = group["ts_ns"].to_numpy()
        duration = group["duration_ns"].to_numpy()
        out.append(
            InputWait(
                rank=rank,
                name=str(name),
                count=len(group),
                total_ns=int(duration.sum()),
                max_ns=int(duration.max()),
                exposed_ns=_exposed(begin, begin + duration, busy),
            )
        )
    return sorted(out, key=lambda row: (-row.total_ns, row.name))


def _waits(table: pl.DataFrame) -> pl.DataFrame:
    mask = pl.Series(matching(table["name"], INPUT_NAME.search))
    return table.filter(mask).select(pl.col("name").cast(pl.String), "ts_ns", "duration_ns")


def _exposed(begin: NDArray[np.int64], end: NDArray[np.int64], busy: list[Cumulative]) -> int:
    total = int((end - begin).sum())
    return total - max((int(device.within(begin, end).sum()) for device in busy), default=0)
