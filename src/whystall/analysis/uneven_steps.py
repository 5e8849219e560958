"""How unevenly the ranks of a job work in the same steps, by how long their stepping threads were on a core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from whystall.analysis.run_results import UnevenSteps
from whystall.run_folder.samples import DISTURBED
from whystall.trace.samples import RunSamples

_FEWEST: Final = 20
_MOST: Final = 1_000
"""Limit of steps: of a longer run only the latest count."""
_WARM_UP: Final = 10
_COUNTED: Final = 0.8
"""Short steps share a reading of the kernel: if more of them do, single steps have no result."""


def uneven_steps(wholes: Sequence[RunSamples]) -> UnevenSteps | None:
    """The excess work of each step's busiest rank over the mean of all; ``None`` for one rank, or few steps."""
    if len(wholes) < 2:
        return None
    own = []
    for place, whole in enumerate(wholes):
        if not {"step", "duration_us", "cpu_us", "flags"} <= set(whole.steps.columns):
            return None
        plain = whole.steps.filter((pl.col("flags") & DISTURBED) == 0).select("step", "duration_us", "cpu_us")
        plain = plain.unique("step", keep="last", maintain_order=True).tail(_MOST)
        own.append(plain.with_columns(rank=pl.lit(place, pl.Int32)))
    every = pl.concat(own)
    cpu, length = pl.col("cpu_us"), pl.col("duration_us")
    made_by_all = (
        every.group_by("step")
        .agg(ranks=pl.len(), counted=cpu.count(), most=cpu.max(), mean=cpu.mean(), apart=length.max() - length.min())
        .filter(pl.col("ranks") == len(wholes))
        .sort("step")
    )
    steps = made_by_all[min(_WARM_UP, len(made_by_all) // 10) :]
    counted = steps.filter(pl.col("counted") == len(wholes))
    if len(counted) < max(_FEWEST, _COUNTED * len(steps)):
        return None
    above = (counted["most"] - counted["mean"]).to_numpy() * 1000
    ranks = every.join(counted, on="step", how="semi").group_by("rank").agg(cpu.mean())["cpu_us"].to_numpy() * 1000
    return UnevenSteps(
        steps=len(counted),
        above_ns=round(float(above.mean())),
        usual_ns=round(float(np.median(above))),
        of_one_rank_ns=round(float(ranks.max() - ranks.mean())),
        apart_ns=round(float(counted["apart"].mean() or 0.0) * 1000),  # type: ignore[arg-type]
    )
