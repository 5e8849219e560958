"""Reads a Kineto trace (PyTorch profiler, any age and vendor)."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from whystall.trace.files import Head, Limits, Progress
from whystall.trace.readers.kineto.categories import DEVICE
from whystall.trace.readers.kineto.clock import clock_of
from whystall.trace.readers.kineto.counters import take_counters
from whystall.trace.readers.kineto.metadata import parse_metadata
from whystall.trace.readers.kineto.order import number_threads
from whystall.trace.readers.kineto.raw import RawTable
from whystall.trace.readers.kineto.repair import (
    REPAIRED,
    move_calls,
    move_marks,
    place_device_events,
    place_python_functions,
)
from whystall.trace.readers.kineto.scan import Scan, scan_file
from whystall.trace.readers.kineto.strangers import foreign_threads
from whystall.trace.readers.kineto.tables import KINDS, Build, build_table, group_tables, without_rows
from whystall.trace.readers.kineto.threads import thread_table
from whystall.trace.readers.reader import RawTrace

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class KinetoReader:
    """Traces of the PyTorch profiler."""

    name = "kineto"
    version = 5
    describes = "traces of the PyTorch profiler (JSON that starts with '{' or '[')"
    suffixes = (".json", ".gz", ".trace")

    def knows(self, head: Head) -> bool:
        """Whether it is JSON: events may begin anywhere in a file, so nothing more is checked."""
        begin = head.content.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1]
        return begin in (b"", b"{", b"[")

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> tuple[RawTrace]:
        """The recording in a file, as far as it can be read. Raises `InputError` when it is no trace."""
        return (recording_of(scan_file(path, limits=limits, progress=progress)),)


def recording_of(scan: Scan) -> RawTrace:
    """The recording in scanned events."""
    scanner = scan.scanner
    names = scanner.names()
    metadata = parse_metadata(scanner.kept())
    raw = [RawTable(columns, scanner) for columns in scanner.take_tables()]
    build = Build(scanner, names, clock_of(raw, metadata.base_time_ns))
    _report_damage(scan, build)
    threads = number_threads(thread_table(scanner, raw, names), raw)
    raw, counters = take_counters(raw, threads, build)
    groups = group_tables(raw, names)
    if scan.room is not None:
        scan.room.require(scanner.counts()["events"], device_events=sum(table.rows for table in groups[DEVICE]))
    build.foreign = foreign_threads(threads, groups)
    del raw
    tables = {} if counters is None else {"counters": counters}
    for kind in KINDS:
        if groups[kind]:
            tables[kind] = build_table(kind, groups[kind], build)
        elif kind in REPAIRED:
            tables[kind] = without_rows(kind)
        groups[kind].clear()
    place_device_events(tables, threads, build)
    move_calls(tables, build)
    move_marks(tables, build)
    place_python_functions(tables, threads)
    return RawTrace(
        tables=tables,
        threads=threads,
        metadata=metadata,
        events=scanner.counts()["events"],
        raw_bytes=scan.raw_bytes,
        truncated=scan.truncated,
        warnings=(*scan.warnings, *build.warnings),
        quarantined=tuple(build.quarantined.values()),
        extra_arguments=pl.concat(build.extra) if build.extra else None,
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
            f"{counts['unnamed_arguments']:,} arguments were left out: "
            "the file has too many different names of arguments"
        )
    if counts["quoted_times"]:
        build.warnings.append(f"{counts['quoted_times']:,} events give their times as text; they were read as numbers")
    if build.clock.in_nanoseconds:
        build.warnings.append(
            "times are in nanoseconds where PyTorch writes microseconds; they were read as nanoseconds"
        )
