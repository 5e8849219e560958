"""Communication records: the arguments that NCCL, RCCL and Gloo leave on events."""

from __future__ import annotations

from typing import Final

import polars as pl

_COLUMNS: Final = (
    "collective",
    "dtype",
    "in_elements",
    "out_elements",
    "group",
    "group_size",
    "group_ranks",
    "sequence_number",
)
_SOURCES: Final = {"device_events": "device", "operators": "operator", "annotations": "annotation"}
_INTEGERS: Final = ("in_elements", "out_elements", "group_size", "sequence_number")


def collective_table(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """All events that carry a collective's name, and takes those columns out of their tables, in place."""
    found = []
    for name, source in _SOURCES.items():
        table = tables[name]
        found.append(
            table.with_row_index("row")
            .filter(pl.col("collective").is_not_null())
            .select(
                pl.lit(source).alias("source"),
                pl.col("row").cast(pl.Int32),
                *(pl.col(column).cast(pl.Int64 if column in _INTEGERS else pl.String) for column in _COLUMNS),
            )
        )
        tables[name] = table.drop(_COLUMNS)
    return pl.concat(found)
