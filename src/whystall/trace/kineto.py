"""Reads a Kineto trace (PyTorch profiler, any age and vendor) into a `Trace`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from whystall.trace import categories
from whystall.trace.clock import clock_of
from whystall.trace.collectives import collective_table
from whystall.trace.link import link_device, link_host, link_series, nest_host, rows_of
from whystall.trace.metadata import parse_metadata, sound_text
from whystall.trace.model import Source, Trace
from whystall.trace.raw import RawTable
from whystall.trace.repair import move_marks, place_device_events, place_python_functions
from whystall.trace.scan import Limits, Progress, Scan, scan_file
from whystall.trace.steps import find_steps, step_of_launch
from whystall.trace.tables import Build, build_table, group_tables
from whystall.trace.threads import thread_table

_TABLE_NAMES = {
    "operators": categories.OPERATOR,
    "python_functions": categories.PYTHON,
    "runtime_calls": categories.RUNTIME,
    "device_events": categories.DEVICE,
    "annotations": categories.ANNOTATION,
    "device_annotations": categories.DEVICE_ANNOTATION,
    "memory_events": categories.MEMORY,
    "flows": categories.FLOW,
    "synchronizations": categories.SYNCHRONIZATION,
    "other_events": categories.OTHER,
}
_EXTRA_SCHEMA = {"table": pl.Categorical, "row": pl.Int64, "key": pl.Categorical, "value": pl.Categorical}


def read_kineto(path: Path, *, limits: Limits | None = None, progress: Progress | None = None) -> Trace:
    """The trace in a file: JSON or gzip by content, as far as it can be read.

    Raises `InputError` when the file cannot be opened or is no trace; damage is reported in
    ``Trace.source`` instead.
    """
    return _assemble(path, scan_file(path, limits=limits, progress=progress))


def _assemble(path: Path, scan: Scan) -> Trace:
    scanner = scan.scanner
    names = scanner.names()
    metadata = parse_metadata(scanner.kept())
    raw = [RawTable(columns, scanner) for columns in scanner.take_tables()]
    build = Build(scanner, names, clock_of(raw, metadata.base_time_ns))
    _report_damage(scan, build)
    threads = thread_table(scanner, raw, names)
    groups = group_tables(raw, names)
    del raw
    tables = {}
    for name, kind in _TABLE_NAMES.items():
        tables[name] = build_table(kind, groups[kind], build)
        groups[kind].clear()
    place_device_events(tables, threads, build)
    move_marks(tables, build)
    place_python_functions(tables)
    nesting = nest_host(tables)
    link_host(tables, nesting)
    link_device(tables)
    steps, steps_from = find_steps(tables["annotations"])
    tables["device_events"] = _with_steps(tables["device_events"], tables["runtime_calls"], steps)
    extra = pl.concat(build.extra) if build.extra else pl.DataFrame(schema=_EXTRA_SCHEMA)
    collectives = collective_table(tables)
    source = Source(
        name=sound_text(path.name),
        file_bytes=scan.file_bytes,
        raw_bytes=scan.raw_bytes,
        events=scanner.counts()["events"],
        truncated=scan.truncated,
        warnings=(*scan.warnings, *build.warnings),
        quarantined=tuple(build.quarantined.values()),
    )
    return Trace(
        source=source,
        metadata=metadata,
        threads=threads,
        steps=steps,
        steps_from=steps_from,
        collectives=collectives,
        extra_arguments=extra,
        host_order=nesting.order,
        **tables,
    )


def _report_damage(scan: Scan, build: Build) -> None:
    counts = scan.scanner.counts()
    build.set_aside("no event: a null, number, text or list where an event belongs", counts["not_objects"])
    build.set_aside("no event: an object without a phase", counts["without_phase"])
    build.set_aside("not parsable", counts["broken"])
    if counts["broken"]:
        build.warnings.append(
            f"{counts['broken']:,} places could not be parsed; {counts['broken_bytes']:,} bytes were skipped there"
        )
    if counts["unnamed_arguments"]:
        build.warnings.append(
            f"{counts['unnamed_arguments']:,} arguments were left out: the file has too many different names of arguments"
        )
    if counts["quoted_times"]:
        build.warnings.append(f"{counts['quoted_times']:,} events give their times as text; they were read as numbers")
    if build.clock.in_nanoseconds:
        build.warnings.append(
            "times are in nanoseconds where PyTorch writes microseconds; they were read as nanoseconds"
        )


def _with_steps(events: pl.DataFrame, runtime: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    launch = rows_of(events["launch"])
    starts = runtime["ts_ns"].to_numpy()
    linked = launch >= 0
    step = np.full(len(events), -1, np.int32)
    if len(starts):
        step[linked] = step_of_launch(starts[launch[linked]], steps)
    return events.with_columns(link_series("step", step))
