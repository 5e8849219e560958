"""The threads of an export's processes, with the names that the system gave them."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from whystall.trace.readers.nsys.export import THREADS, Export, process_number, thread_number


def thread_table(export: Export, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """A row for each thread that did anything: globalTid, process, pid, tid, name."""
    found = [table["globalTid"] for table in tables.values() if "globalTid" in table.columns]
    threads = pl.concat(found).unique().sort().to_frame()
    given = export.source.read(THREADS, {"globalTid": int, "nameId": int}).drop_nulls().sort("globalTid", "nameId")
    names = export.names(given["nameId"])
    labels = {thread: names[number] for thread, number in given.rows() if number in names}
    return threads.with_columns(
        export.process_of("globalTid"),
        thread_number(pl.col("globalTid")).cast(pl.String).alias("tid"),
        pl.Series("name", [labels.get(thread) for thread in threads["globalTid"].to_list()], pl.String),
    ).with_columns(pl.col("process").map_elements(lambda number: str(process_number(number)), pl.String).alias("pid"))


def with_threads(table: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """The table with the rows of its threads in ``threads``, those of one process, where it has threads at all."""
    if "globalTid" not in table.columns:
        return table
    rows = threads.select("globalTid").with_row_index("thread").with_columns(pl.col("thread").cast(pl.Int32))
    return table.join(rows, on="globalTid", how="left", maintain_order="left")
