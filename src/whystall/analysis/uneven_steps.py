"""How unevenly the ranks of a job work in the same steps, by how long their stepping threads were on a core."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import numpy as np
import polars as pl

from whystall.analysis.run_results import UnevenSteps
from whystall.run_folder.samples import DISTURBED
from whystall.trace.samples import RunSamples

_FEWEST: Final = 20
_MOST: Final = 1_000
"""Of longer runs the latest steps."""
_WARM_UP: Final = 10
_COUNTED: Final = 0.8
"""Short steps share an answer of the kernel: where more of them do, nothing is said of single ones."""


def uneven_steps(wholes: Sequence[RunSamples]) -> UnevenSteps | None:
    """What the rank that works most in a step works above the mean of all; ``None`` of one rank, or of few steps."""
    if len(wholes) < 2:
        return None
    own = []
    for place, whole in enumerate(wholes):
        if not {"step", "cpu_us", "flags"} <= set(whole.steps.columns):
            return None
        plain = whole.steps.filter((pl.col("flags") & DISTURBED) == 0)
        own.append(plain.select("step", pl.col("cpu_us").alias(str(place))))
    common = reduce(lambda one, other: one.join(other, on="step"), own)
    steps = common.sort("step").drop("step")[min(_WARM_UP, len(common) // 10) :]
    counted = steps.drop_nulls()
    if len(counted) < max(_FEWEST, _COUNTED * len(steps)):
        return None
    cpu = counted.tail(_MOST).to_numpy().astype(np.float64) * 1000
    above = cpu.max(axis=1) - cpu.mean(axis=1)
    ranks = cpu.mean(axis=0)
    return UnevenSteps(
        steps=len(cpu),
        above_ns=round(float(above.mean())),
        usual_ns=round(float(np.median(above))),
        of_one_rank_ns=round(float(ranks.max() - ranks.mean())),
    )
