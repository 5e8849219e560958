"""An order of threads and of simultaneous events that does not depend on how a file lists them.

Otherwise the file's order would decide which of several simultaneous events is the outer one, and which thread comes
first: writers differ in it, and so do the tools that merge, filter or sort traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.readers.kineto import categories
from whystall.trace.readers.kineto.raw import RawTable

# Arguments that grow in the order in which events of a kind began: the outer event has the smaller number.
_COUNTED_BY: Final = {
    categories.OPERATOR: "external_id",
    categories.PYTHON: "python_id",
    categories.RUNTIME: "correlation",
    categories.DEVICE: "correlation",
    categories.ANNOTATION: "external_id",
    categories.DEVICE_ANNOTATION: "external_id",
    categories.MEMORY: "event_index",
    categories.FLOW: "id",
    categories.SYNCHRONIZATION: "correlation",
}


def simultaneous_in_order(kind: str, table: pl.DataFrame) -> NDArray[np.intp] | None:
    """The rows of a table that is sorted by start, with the events of one start in their order.

    The longest is first, then they go by the number that the recording counts such events with, by thread and by name.
    ``None`` where they are in their order already.
    """
    start = table["ts_ns"].to_numpy()
    same = start[1:] == start[:-1]
    if not same.any():
        return None
    place = np.flatnonzero(np.append(same, False) | np.append(False, same))
    keys = [name for name in ("ts_ns", "duration_ns", _COUNTED_BY.get(kind), "thread", "name") if name in table.columns]
    together = table.select(keys)[place]
    if "name" in keys:
        together = together.with_columns(pl.col("name").cast(pl.String))
    ordered = together.with_row_index("row").sort(
        keys, descending=[name == "duration_ns" for name in keys], maintain_order=True, nulls_last=True
    )
    moved = place[ordered["row"].to_numpy()]
    if np.array_equal(moved, place):
        return None
    rows = np.arange(len(start))
    rows[place] = moved
    return rows


def number_threads(threads: pl.DataFrame, tables: Sequence[RawTable]) -> pl.DataFrame:
    """The threads by process and thread; the tables name them by their new numbers."""
    names = list(zip(threads["pid"].to_list(), threads["tid"].to_list(), strict=True))
    before = sorted(range(len(names)), key=lambda row: [(part is not None, part or "") for part in names[row]])
    number = np.empty(len(threads), np.int32)
    number[before] = np.arange(len(threads), dtype=np.int32)
    for table in tables:
        table.thread = number[table.thread]
    return threads[before]
