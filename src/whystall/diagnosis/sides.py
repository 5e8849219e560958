"""The two sides of a comparison: the length of a step by the mean and by the median, with its error.

Two runs of the same code differ by more than their steps show: memory layout, clocks and neighbours vary. One run of
each therefore has at least the error that such runs were seen to have (`RUN_TO_RUN`); only further pairs of runs
measure it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Protocol

import msgspec
import numpy as np

from whystall.analysis.paired import SIGMAS, Interval, paired
from whystall.analysis.results import Device, Step
from whystall.analysis.run_noise import RunNoise, middle
from whystall.analysis.run_results import RunSummary
from whystall.analysis.step_errors import FEWEST_STEPS, mean_error, median_error
from whystall.diagnosis.causes import Statistic

RUN_TO_RUN: Final = {"cpu": 0.04, "other": 0.01}
"""The standard deviation of a step's length between runs of the same code, as a share (benchmarks/same_twice.py)."""

BESIDE_OTHERS: Final = 0.45
"""The same on a CPU for each core that other programs use, up to one.

The median step of 80 runs of one job on two cores, beside a load of up to six, differed by 46 %, the mean by 47 %.
"""

MeasuredBy = Literal["samples", "trace", "none"]


class Stepped(Protocol):
    """The length of a step in a report."""

    @property
    def devices(self) -> Sequence[Device]:
        """Devices with their steps."""

    @property
    def run(self) -> Sequence[RunSummary]:
        """Whole runs, from their samples."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two sides: its step by the statistic that decides, with its own error (95 %), and by both.

    For several runs the middle one counts, without an error of a single run.
    """

    name: str
    steps: int
    step_ns: int | None
    low_ns: int | None
    high_ns: int | None
    measured_by: MeasuredBy
    runs: int = 1
    mean_ns: int | None = None
    median_ns: int | None = None


class RunLength(msgspec.Struct, frozen=True, kw_only=True):
    """The length of a step in one of several runs of a job."""

    steps: Annotated[int, msgspec.Meta(gt=0)]
    measured_by: MeasuredBy
    mean_ns: Annotated[int, msgspec.Meta(gt=0)]
    median_ns: Annotated[int, msgspec.Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class Length:
    """A step's length by one statistic, and its standard error as a share; ``None`` for too few steps."""

    ns: float
    error: float | None


@dataclass(frozen=True, slots=True)
class RunSteps:
    """The steps of one run, all ranks together."""

    steps: int
    measured_by: MeasuredBy
    by: dict[Statistic, Length]
    sway: float
    """The result of `run_to_run`."""


def run_to_run(report: Stepped) -> float:
    """The difference between runs of the same code, as a share, at one standard deviation.

    The cores that other programs took in one run may be free in the next.
    """
    usual = RUN_TO_RUN["other" if _has_accelerator(report) else "cpu"]
    return float(np.hypot(usual, _beside_others(report)))


def _has_accelerator(report: Stepped) -> bool:
    return any(device.kind != "cpu" for device in report.devices)


def _beside_others(report: Stepped) -> float:
    return 0.0 if _has_accelerator(report) else BESIDE_OTHERS * min(other_cores(report), 1.0)


def other_cores(report: Stepped) -> float:
    """The cores that other programs used on average while a run was watched; 0 where that was not seen."""
    return max((run.other_cores or 0.0 for run in report.run), default=0.0)


def run_steps(report: Stepped) -> RunSteps | None:
    """The steps of a run: those that samples measured, else those of its trace; ``None`` where it has none."""
    sway = run_to_run(report)
    runs = [run for run in report.run if run.measured >= FEWEST_STEPS]
    if runs:
        count = sum(run.measured for run in runs)
        mean = sum(run.total_ns for run in runs) / count
        median = float(np.median([run.median_ns for run in runs]))
        errors = [_errors(run) for run in runs]
        # Ranks wait for each other: a delay of one of them delays all.
        known = {
            "mean": max((one for one, _ in errors if one is not None), default=None),
            "median": max((one for _, one in errors if one is not None), default=None),
        }
        return RunSteps(count, "samples", _lengths(mean, median, known["mean"], known["median"]), sway)
    windows = np.array([step.window_ns for step in usual_steps(report)], np.float64)
    if not len(windows):
        return None
    mean, median = float(np.mean(windows)), float(np.median(windows))
    by = _lengths(mean, median, mean_error(windows), median_error(windows))
    return RunSteps(len(windows), "trace", by, sway)


def baseline_steps(runs: Sequence[RunLength], noises: Mapping[Statistic, RunNoise]) -> RunSteps:
    """The steps of several runs of one job, with the error that these runs show by themselves."""
    lengths: dict[Statistic, Length] = {
        "mean": Length(middle([run.mean_ns for run in runs]), noises["mean"].error(len(runs))),
        "median": Length(middle([run.median_ns for run in runs]), noises["median"].error(len(runs))),
    }
    return RunSteps(sum(run.steps for run in runs), runs[0].measured_by, lengths, 0.0)


def against_baseline(candidates: Sequence[Stepped], base: Stepped, noise: RunNoise) -> RunSteps | None:
    """The steps of the runs compared with a baseline: they vary as the baseline's do.

    Other programs that the baseline's runs did not have beside them increase the variation.
    """
    found = [one for one in map(run_steps, candidates) if one is not None]
    if len(found) != len(candidates):
        return None
    more = max(max(_beside_others(one) - _beside_others(base), 0.0) for one in candidates)
    sway = float(np.hypot(noise.error(len(found)), more))
    by = {key: _together([one.by[key] for one in found]) for key in found[0].by}
    return RunSteps(sum(one.steps for one in found), found[0].measured_by, by, sway)


def _together(lengths: Sequence[Length]) -> Length:
    errors = [one.error for one in lengths if one.error is not None]
    known = len(errors) == len(lengths)
    error = float(np.sqrt(np.sum(np.square(errors)))) / len(lengths) if known else None
    return Length(middle([one.ns for one in lengths]), error)


def _errors(run: RunSummary) -> tuple[float | None, float | None]:
    """The standard errors of a run's mean and median, in nanoseconds.

    Reports of earlier versions hold its steps alone.
    """
    if run.mean_error_ns is not None or run.median_error_ns is not None:
        return run.mean_error_ns, run.median_error_ns
    steps = np.array(run.durations_ns[run.warm_up :], np.float64)
    return mean_error(steps), median_error(steps)


def _lengths(mean: float, median: float, mean_ns: float | None, median_ns: float | None) -> dict[Statistic, Length]:
    return {
        "mean": Length(mean, None if mean_ns is None or mean <= 0 else mean_ns / mean),
        "median": Length(median, None if median_ns is None or median <= 0 else median_ns / median),
    }


def usual_steps(report: Stepped) -> list[Step]:
    """The steps that stand for the others: without the first and the last of each device, which are cut or warm up."""
    out: list[Step] = []
    for device in report.devices:
        usual = [step for step in device.steps if not step.outlier]
        out += usual[1:-1] if len(usual) > FEWEST_STEPS + 1 else usual
    return out


def side(name: str, runs: Sequence[RunSteps | None], statistic: Statistic) -> Side:
    """One side of a comparison, of one run or several."""
    found = [run for run in runs if run is not None]
    if not found:
        return Side(name=name, steps=0, step_ns=None, low_ns=None, high_ns=None, measured_by="none", runs=len(runs))
    middle = {key: float(np.median([run.by[key].ns for run in found])) for key in found[0].by}
    error = found[0].by[statistic].error if len(found) == 1 else None
    wide = None if error is None else SIGMAS * error * middle[statistic]
    return Side(
        name=name,
        steps=sum(run.steps for run in found),
        step_ns=round(middle[statistic]),
        low_ns=None if wide is None else round(middle[statistic] - wide),
        high_ns=None if wide is None else round(middle[statistic] + wide),
        measured_by=found[0].measured_by,
        runs=len(runs),
        mean_ns=round(middle["mean"]),
        median_ns=round(middle["median"]),
    )


def speedup(
    before: Sequence[RunSteps | None], after: Sequence[RunSteps | None], statistic: Statistic, sigmas: float = SIGMAS
) -> tuple[float, Interval | None] | None:
    """How many times as fast the second side is, with its interval; without one where too few steps were seen.

    The noise comes from the pairs alone if there are several; for one pair, from the steps of both, and from the usual
    difference between runs.
    """
    pairs = [(one, other) for one, other in zip(before, after, strict=True) if one is not None and other is not None]
    lengths = [(one.by[statistic], other.by[statistic]) for one, other in pairs]
    if not lengths or min(min(one.ns, other.ns) for one, other in lengths) <= 0:
        return None
    if len(lengths) > 1:
        found = paired([one.ns for one, _ in lengths], [other.ns for _, other in lengths]).speedup
        return found.ratio, found
    (one, other), ratio = lengths[0], lengths[0][0].ns / lengths[0][1].ns
    if one.error is None or other.error is None:
        return round(ratio, 4), None
    sway = float(np.hypot(pairs[0][0].sway, pairs[0][1].sway))
    wide = sigmas * float(np.sqrt(one.error**2 + other.error**2 + sway**2))
    ends = [round(float(ratio * np.exp(way)), 4) for way in (-wide, wide)]
    return round(ratio, 4), Interval(ratio=round(ratio, 4), low=ends[0], high=ends[1])
