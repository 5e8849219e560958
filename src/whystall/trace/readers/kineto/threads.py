"""The threads and streams of a trace, with the names that its metadata events give them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from whystall._native import Scanner
from whystall.trace.readers.kineto.raw import TEXT, RawTable

_THREAD_NAME = "thread_name"


def thread_table(scanner: Scanner, tables: Sequence[RawTable], names: list[str]) -> pl.DataFrame:
    """One row per (pid, tid) as the file writes them, with the name of the thread or stream."""
    threads = scanner.threads()
    labels: list[str | None] = [None] * len(threads)
    for table in tables:
        if not table.metadata:
            continue
        taken = table.take("name", TEXT)
        if taken is None:
            continue
        rows, ids = taken
        for row, text in zip(rows.tolist(), scanner.texts(ids.astype("int32")), strict=True):
            if names[table.name[row]] == _THREAD_NAME:
                labels[table.thread[row]] = text
    return pl.DataFrame(
        {
            "pid": [None if pid is None else str(pid) for pid, _ in threads],
            "tid": [None if tid is None else str(tid) for _, tid in threads],
            "name": labels,
        },
        schema={"pid": pl.String, "tid": pl.String, "name": pl.String},
    )
