"""Gathers a finished run's report and samples, for tools that draw curves."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whystall.cli import inputs, output
from whystall.cli.rendering import render
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from whystall.cli.console import Console
    from whystall.report.registry import CurvesFolder, Tracker
    from whystall.report.schema import Report
    from whystall.vocabulary.metrics import Point, StepTimes, Told

_NUMBER: Final = re.compile(r"\d+$")


def told_by(export: CurvesFolder | Tracker, options: Namespace, console: Console) -> Told:
    """The content of ``options.paths``. Raises ``UsageError`` where the package is missing that ``export`` needs."""
    found = find_spec(export.package)
    if found is None or found.origin is None:  # a folder of that name is no package
        raise UsageError(f"{export.name} needs the package {export.package}: pip install 'whystall[{export.extra}]'")
    from whystall.report.names import clean
    from whystall.vocabulary.metrics import Histogram, Told

    report = output.to_share(inputs.report_from(options.paths, options, console), options)
    return Told(
        run="whystall" if options.redact else _name(options.paths),
        verdict=clean(report.verdict.summary),
        cause=report.verdict.cause,
        numbers={point.path: point.value for point in _points(report) if not isinstance(point.value, Histogram)},
        times=_sampled(options.paths) or list(_recorded(report)),
        markdown=render(report, "markdown"),
        page=render(report, "html"),
    )


def _name(paths: list[str]) -> str:
    """The run's name: that of the first file or folder, without the endings of files."""
    path = Path(paths[0]).resolve()
    return path.name if path.is_dir() else path.name.partition(".")[0]


def _points(report: Report) -> Iterator[Point]:
    from whystall.report.metrics import points_of_report
    from whystall.report.names import clean
    from whystall.vocabulary.metrics import PART_SHARE, Point

    yield from points_of_report(report)
    for run in report.run:
        for part, share in run.shares.items():
            yield Point(PART_SHARE, {"rank": str(run.rank), "part": clean(part, 100)}, share)


def _sampled(paths: list[str]) -> list[StepTimes]:
    """The steps of a watched run, without those that watching disturbed."""
    import polars as pl

    from whystall.run_folder.layout import rank_files
    from whystall.run_folder.samples import DISTURBED
    from whystall.trace.samples import read_samples
    from whystall.vocabulary.metrics import StepTimes

    told = []
    usable = (pl.col("flags") & DISTURBED == 0) & (pl.col("step") >= 0) & (pl.col("duration_us") >= 0)
    for file in rank_files(Path(paths[0]), "samples") if len(paths) == 1 else []:
        samples = read_samples(file)
        steps = samples.steps.filter(usable)
        ended = steps["end_us"].fill_null(0).to_list() if "end_us" in steps.columns else [0] * len(steps)
        at = [samples.began_unix_ns / 1e9 + us / 1e6 for us in ended]
        told.append(StepTimes(samples.rank, steps["step"].to_list(), at, (steps["duration_us"] / 1e6).to_list()))
    return [times for times in told if times.steps]


def _recorded(report: Report) -> Iterator[StepTimes]:
    """The steps that a trace holds, of the first device of each rank."""
    from whystall.vocabulary.metrics import StepTimes

    seen: set[int] = set()
    for device in report.devices:
        if device.rank in seen or not device.steps:
            continue
        seen.add(device.rank)
        numbers = [_NUMBER.search(step.name) for step in device.steps]
        steps = [int(number[0]) if number else at for at, number in enumerate(numbers)]
        yield StepTimes(device.rank, steps, [0.0] * len(steps), [step.window_ns / 1e9 for step in device.steps])
