"""The devices' own counters."""

from __future__ import annotations

from typing import Final

from whystall.analysis.counters import DeviceCounter
from whystall.report import format as fmt
from whystall.report import tables
from whystall.report.names import clean
from whystall.report.ranks import RankReport
from whystall.report.tables import Cell, Column, Limits, Table

_LONGEST_UNIT: Final = 4  # GB/s: a longer text is no unit


def counters(rank: RankReport, limits: Limits) -> Table:
    """Counters by device: shares first, those that were highest while the device worked."""
    columns = (
        Column("Counter", "name"),
        Column("Device", note="Unknown where the recording does not name it", priority=2),
        Column("Mean", note="Over the device's window, by time", priority=1),
        Column("Working", note="Mean while anything ran on the device", priority=1),
        Column("Idle", note="Mean while nothing ran on it", priority=1),
        Column("5 %", note="Not exceeded for 5 % of the time", priority=4),
        Column("95 %", note="Not exceeded for 95 % of the time", priority=3),
        Column("Samples", priority=5),
    )
    shown = sorted(rank.counters, key=_order)[: limits.rows]
    rows = (
        (
            tables.name(row.name, limits),
            Cell(fmt.UNKNOWN) if row.device is None else tables.identifier(row.device),
            *(_value(value, row.unit) for value in (row.mean, row.busy_mean, row.idle_mean, row.p5, row.p95)),
            tables.count(row.samples),
        )
        for row in shown
    )
    caption = (
        "The device's own counters within its window; each value holds until the next. One that holds for "
        "longer than a kernel is of the gap beside it, too."
    )
    return tables.table("counters", "Device counters", caption, columns, rows, total=len(rank.counters))


def _order(row: DeviceCounter) -> tuple[bool, float, str, int]:
    working = row.busy_mean if row.busy_mean is not None else row.mean
    return row.unit is None, -(working or 0.0), row.name, -1 if row.device is None else row.device


def _value(value: float | None, unit: str | None) -> Cell:
    """A value with its unit, where that is known."""
    shown = f" {clean(unit, _LONGEST_UNIT)}" if value is not None and unit and len(unit) <= _LONGEST_UNIT else ""
    return Cell(fmt.quantity(value) + shown, value)
