"""Shared code of readers that read device counters."""

from __future__ import annotations

import polars as pl

PERCENT = "%"


def with_units(samples: pl.DataFrame) -> pl.DataFrame:
    """Samples with the unit of those that are shares by their names: ``SM Active (%)``, ``… [Throughput %]``.

    Other units in names are ignored: Nsight Systems has clocks in hertz under names with MHz.
    """
    share = pl.col("name").cast(pl.String).str.contains(r"%[\])]\s*$")
    return samples.with_columns(unit=pl.when(share).then(pl.lit(PERCENT)).cast(pl.Enum([PERCENT])))
