"""The quality of the recording: files, signals, and data that had to be set aside."""

from __future__ import annotations

from whystall.analysis.results import Device
from whystall.report import tables
from whystall.report.schema import Report
from whystall.report.tables import Cell, Column, Limits, Table


def files(report: Report, limits: Limits) -> Table:
    """The files that were read."""
    columns = (
        Column("File", "name"), Column("Rank"), Column("On disk"), Column("Uncompressed"), Column("Events"),
        Column("Flag", "mark"),
    )  # fmt: skip
    rows = (
        (
            tables.name(file.path, limits),
            tables.identifier(file.rank),
            tables.size(file.bytes),
            tables.size(file.raw_bytes),
            tables.count(file.events),
            tables.mark("truncated" if file.truncated else ""),
        )
        for file in report.source.files[: limits.rows]
    )
    total = len(report.source.files)
    return tables.table("files", "Files", "The files that were read.", columns, rows, total=total)


def dropped(report: Report, limits: Limits) -> Table:
    """The events that were set aside."""
    columns = (Column("Reason", "prose"), Column("Rank"), Column("Events"), Column("Device time", priority=1))
    shown = tables.largest(report.source.dropped, limits, lambda row: (row.events, row.reason))
    rows = (
        (
            tables.words(row.reason, limits),
            tables.identifier(row.rank),
            tables.count(row.events),
            tables.duration(row.device_ns),
        )
        for row in shown
    )
    caption = "Events that were set aside, and why; they count in no number above."
    return tables.table("dropped", "Set aside", caption, columns, rows, total=len(report.source.dropped))


def signals(report: Report, limits: Limits) -> Table:
    """Which signals the capture carries."""
    columns = (Column("Signal", "prose"), Column("Recorded", "text"))
    found = sorted(report.source.signals.items())
    rows = (
        (tables.words(signal.replace("_", " "), limits), Cell("yes" if present else "no", int(present)))
        for signal, present in found[: limits.rows]
    )
    caption = "Signals in the capture; a missing one leaves some causes undecided."
    return tables.table("signals", "Signals", caption, columns, rows, total=len(found))


def undecided(device: Device, limits: Limits) -> Table:
    """Why some of a device's idle time could not be decided."""
    columns = (Column("Why", "prose"), Column("Missing signal", "text", priority=2), Column("Idle time", priority=1))
    rows = (
        (
            tables.words(row.reason, limits),
            tables.words(row.missing_signal, limits),
            tables.duration(row.idle_ns),
        )
        for row in device.idle_unknown[: limits.rows]
    )
    caption = "Idle time whose cause this capture cannot decide."
    total = len(device.idle_unknown)
    return tables.table("undecided", "Undecided idle time", caption, columns, rows, total=total)
