"""Steps of a trace: from the profiler's own marks or, failing that, from what repeats.

Sources in order: ``ProfilerStep#N`` annotations; the ends of optimizer steps; annotations of one name
(digits aside) that repeat without overlap and cover most of their thread's time.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from whystall.trace.columns import codes, distinct, matching

_PROFILER_STEP: Final = re.compile(r"^ProfilerStep\s*#\s*\d+$")
OPTIMIZER_STEP: Final = re.compile(r"^Optimizer\.step#.+\.step$")
"""What torch marks the steps of an optimizer with."""
_DIGITS: Final = re.compile(r"\d+")
_LEAST_REPEATS: Final = 3
_LEAST_COVER: Final = 0.5
STEP_SCHEMA: Final = {"name": pl.String, "ts_ns": pl.Int64, "duration_ns": pl.Int64, "thread": pl.Int32}


def find_steps(annotations: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """The steps in order of time and a sentence saying what they were taken from, or none and ``None``."""
    marks = _matching(annotations, _PROFILER_STEP)
    if not marks.is_empty():
        once = marks.unique("name", keep="first", maintain_order=True)
        return once.select(STEP_SCHEMA.keys()), "ProfilerStep annotations"
    marks = _matching(annotations, OPTIMIZER_STEP)
    steps = _between_optimizer_steps(marks)
    if not steps.is_empty():
        return steps, "optimizer steps (no ProfilerStep annotations)"
    steps = _repeated(annotations)
    if not steps.is_empty():
        return steps, "a repeated annotation (no ProfilerStep annotations, no optimizer steps)"
    return pl.DataFrame(schema=STEP_SCHEMA), None


def _matching(table: pl.DataFrame, pattern: re.Pattern[str]) -> pl.DataFrame:
    return table.filter(pl.Series(matching(table["name"], pattern.match))).select(
        pl.col("name").cast(pl.String), pl.col("ts_ns"), pl.col("duration_ns"), pl.col("thread").cast(pl.Int32)
    )


def _between_optimizer_steps(marks: pl.DataFrame) -> pl.DataFrame:
    """Steps that end where the rarest optimizer's step ends (several optimizers count once)."""
    counts = marks.group_by("name", maintain_order=True).len().filter(pl.col("len") >= 2)
    if counts.is_empty():
        return pl.DataFrame(schema=STEP_SCHEMA)
    fewest = counts.filter(pl.col("len") == counts["len"].min())["name"][-1]
    own = marks.filter(pl.col("name") == fewest)
    # of steps inside each other (or on several threads) every end counts
    ends = np.unique((own["ts_ns"] + own["duration_ns"]).to_numpy())
    if len(ends) < 2:
        return pl.DataFrame(schema=STEP_SCHEMA)
    return pl.DataFrame(
        {
            "name": [f"step {i + 1}" for i in range(len(ends) - 1)],
            "ts_ns": ends[:-1],
            "duration_ns": np.diff(ends),
            "thread": np.full(len(ends) - 1, own["thread"][-1]),
        },
        schema=STEP_SCHEMA,
    )


def _repeated(annotations: pl.DataFrame) -> pl.DataFrame:
    """The repeating annotation that covers the largest part of its thread, if that is most of it."""
    best = pl.DataFrame(schema=STEP_SCHEMA)
    best_cover = _LEAST_COVER
    patterns: dict[str, int] = {}
    pattern_of = [patterns.setdefault(_DIGITS.sub("#", text), len(patterns)) for text in distinct(annotations["name"])]
    pattern = pl.Series("pattern", np.array([*pattern_of, -1], np.int64)[codes(annotations["name"])])
    repeated = annotations.with_columns(pattern).filter(pl.len().over("pattern", "thread") >= _LEAST_REPEATS)
    for group in repeated.partition_by("pattern", "thread", maintain_order=True):
        cover = _cover(group)
        if cover > best_cover:
            best, best_cover = group, cover
    if best.is_empty():
        return best
    named = [f"{name} ({i + 1})" for i, name in enumerate(best["name"].cast(pl.String).to_list())]
    return best.select(pl.Series("name", named), "ts_ns", "duration_ns", pl.col("thread").cast(pl.Int32))


def _cover(group: pl.DataFrame) -> float:
    """The share of the time from first start to last end that is covered, or 0 where they overlap."""
    start = group["ts_ns"].to_numpy()
    end = start + group["duration_ns"].to_numpy()
    if np.any(start[1:] < end[:-1]):
        return 0.0
    return float(group["duration_ns"].sum() / max(int(end[-1] - start[0]), 1))


def step_of_launch(launch_start: np.ndarray, steps: pl.DataFrame) -> np.ndarray:
    """Per launch time the row of the step whose host span contains it, else -1."""
    if steps.is_empty() or not len(launch_start):
        return np.full(len(launch_start), -1, np.int32)
    start = steps["ts_ns"].to_numpy()
    end = start + steps["duration_ns"].to_numpy()
    row = np.searchsorted(start, launch_start, side="right") - 1
    inside = (row >= 0) & (launch_start < end[np.maximum(row, 0)])
    return np.where(inside, row, -1).astype(np.int32)
