"""A whole run from its samples: how long steps took, how that changed, and where the slow ones lost time.

Steps under the profiler are counted but not measured: they are slower for a reason of ours.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.results import RunSteps, SlowStep
from whystall.trace.samples import RunSamples

# A slow step took this much longer than the median, and stands out of the usual spread.
SLOW_RATIO: Final = 1.5
SPREADS: Final = 5.0
_PROFILED: Final = 1
_MOST_SLOW_STEPS: Final = 50
_PARTS: Final = ("input", "forward", "backward", "optimizer", "save", "gc")
# MAD to standard deviation for a normal distribution.
_MAD_TO_SIGMA: Final = 1.4826


def run_steps(samples: RunSamples) -> RunSteps | None:
    """The account of one rank's run; ``None`` when no step was measured."""
    measured = samples.steps.filter((pl.col("flags") & _PROFILED) == 0)
    if measured.is_empty():
        return None
    duration = _ns(measured, "duration_us")
    parts = {part: _ns(measured, f"{part}_us") for part in _PARTS}
    whole = max(int(duration.sum()), 1)
    shares = {part: int(values.sum()) / whole for part, values in parts.items()}
    shares["other"] = max(0.0, 1.0 - sum(shares.values()))
    quantiles = np.quantile(duration, [0.1, 0.5, 0.9, 0.99])
    return RunSteps(
        rank=samples.rank,
        steps=len(samples.steps),
        profiled=len(samples.steps) - len(measured),
        total_ns=int(duration.sum()),
        p10_ns=round(float(quantiles[0])),
        median_ns=round(float(quantiles[1])),
        p90_ns=round(float(quantiles[2])),
        p99_ns=round(float(quantiles[3])),
        max_ns=int(duration.max()),
        trend_per_1000_steps=_trend(duration),
        shares=shares,
        on_cpu_share=int(_ns(measured, "cpu_us").sum()) / whole,
        involuntary_switches_per_step=_mean(measured, "involuntary_switches"),
        major_faults_per_step=_mean(measured, "major_faults"),
        rss_start_bytes=_rss(samples.machine, 0),
        rss_end_bytes=_rss(samples.machine, -1),
        slow_ns=_excess_of_slow(duration),
        slow=_slow_steps(measured, duration, parts),
        durations_ns=_thinned(duration),
    )


def _ns(frame: pl.DataFrame, column: str) -> NDArray[np.int64]:
    if column not in frame.columns:
        return np.zeros(len(frame), np.int64)
    return frame[column].fill_null(0).to_numpy().astype(np.int64) * 1000


def _mean(frame: pl.DataFrame, column: str) -> float:
    return float(frame[column].fill_null(0).to_numpy().mean()) if column in frame.columns else 0.0


def _rss(machine: pl.DataFrame, row: int) -> int | None:
    known = machine["rss_kib"].drop_nulls()
    return int(known[row]) * 1024 if len(known) else None


def _trend(duration: NDArray[np.int64]) -> float | None:
    """The change of the step time over 1,000 steps, as a ratio: medians of the two halves compared."""
    if len(duration) < 20:
        return None
    half = len(duration) // 2
    first, second = float(np.median(duration[:half])), float(np.median(duration[-half:]))
    return (second / first - 1) * 1000 / half if first else None


def _is_slow(duration: NDArray[np.int64]) -> NDArray[np.bool_]:
    middle = float(np.median(duration))
    spread = float(np.median(np.abs(duration - middle))) * _MAD_TO_SIGMA
    return (duration > SLOW_RATIO * middle) & (duration > middle + SPREADS * spread)


def _excess_of_slow(duration: NDArray[np.int64]) -> int:
    slow = _is_slow(duration)
    return int((duration[slow] - np.median(duration)).sum())


def _slow_steps(
    measured: pl.DataFrame, duration: NDArray[np.int64], parts: dict[str, NDArray[np.int64]]
) -> list[SlowStep]:
    """The slowest of the slow steps, each with the parts that were longer than usual."""
    rows = np.flatnonzero(_is_slow(duration))
    rows = rows[np.argsort(-duration[rows], kind="stable")][:_MOST_SLOW_STEPS]
    usual = {part: float(np.median(values)) for part, values in parts.items()}
    middle = float(np.median(duration))
    out = []
    for row in np.sort(rows).tolist():
        excess = round(duration[row] - middle)
        lost = {part: max(0, round(values[row] - usual[part])) for part, values in parts.items()}
        lost["other"] = max(0, excess - sum(lost.values()))
        out.append(
            SlowStep(
                step=int(measured["step"][row]),
                duration_ns=int(duration[row]),
                excess_ns=excess,
                lost_ns={part: time for part, time in lost.items() if time},
            )
        )
    return out


def _thinned(duration: NDArray[np.int64], most: int = 400) -> list[int]:
    """The step times in order; of a long run the longest of each stretch, so that spikes stay."""
    if len(duration) <= most:
        return [int(value) for value in duration]
    edges = np.linspace(0, len(duration), most + 1).astype(np.intp)
    return [int(duration[a:b].max()) for a, b in pairwise(edges.tolist())]
