"""Where the marks of the roofline lie, in percent of their frame; both axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from whystall.analysis.work_results import DeviceEfficiency, Roofline, RooflinePoint
from whystall.report import format as fmt
from whystall.report import tables
from whystall.report.log_axes import LogAxis, Tick
from whystall.report.names import shorten
from whystall.report.tables import Cell, Column, Limits, Table

_MOST_POINTS = 40
_MOST_NUMBERS = 12
_SMALLEST, _LARGEST = 4.5, 17.0  # radii in pixels
_SMALLEST_SHARE = 0.001  # of the drawn time: a point below it would stretch the axes for nothing


@dataclass(frozen=True, slots=True)
class Line:
    """A limit: a diagonal of memory or a ceiling of arithmetic, with its label's place."""

    kind: str
    label: str
    x1: float
    y1: float
    x2: float
    y2: float

    @property
    def label_x(self) -> float:
        """Where the label ends: a diagonal's at its middle, a ceiling's at its right end."""
        return self.x2 if self.kind == "compute" else (self.x1 + self.x2) / 2

    @property
    def label_y(self) -> float:
        """The height of the line there."""
        return self.y2 if self.kind == "compute" else (self.y1 + self.y2) / 2


@dataclass(frozen=True, slots=True)
class Dot:
    """One operator; ``number`` is its row in the table, empty for the smaller ones."""

    kind: str
    x: float
    y: float
    radius: float
    number: str
    title: str


@dataclass(frozen=True, slots=True)
class RooflineView:
    """The drawing with its table and its omissions."""

    summary: str
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...]
    left_out: tuple[str, ...]
    unknown: str | None


def roofline_view(row: DeviceEfficiency) -> RooflineView | None:
    """The roofline of a device; ``None`` where no operator can be placed."""
    roof, ranked = row.roofline, _ranked(row)
    if roof is None or not ranked:
        return None
    least = _SMALLEST_SHARE * sum(point.device_ns for point in ranked)
    drawn = [point for point in ranked[:_MOST_POINTS] if point.device_ns >= least]
    across = LogAxis.across([point.intensity for point in drawn] + _ridges(roof))
    rates = [point.operations_per_s for point in drawn]
    up = LogAxis.up(rates + [one.flops_per_s for one in roof.ceilings if one.flops_per_s > 0])
    longest = max(ranked[0].device_ns, 1)
    dots = tuple(_dot(point, place, longest, across, up) for place, point in enumerate(drawn, 1))
    named = "Operators" if row.peak is None else f"Operators against the peaks of {shorten(row.peak, 60)}"
    return RooflineView(
        summary=f"{named}: operations per second over operations per byte, both logarithmic",
        across=across.ticks(_power_of_ten),
        up=up.ticks(lambda power: fmt.rate(float(Decimal(10) ** power), "OP/s")),
        lines=tuple(_lines(roof, across, up)),
        dots=dots,
        left_out=tuple(_left_out(roof, ranked[len(drawn) :])),
        unknown=None if roof.ceilings and roof.memory_bytes_per_s else row.unknown_because or "peaks are not known",
    )


def _ranked(row: DeviceEfficiency) -> list[RooflinePoint]:
    """The points that can be drawn, those that take most time first."""
    points = [] if row.roofline is None else [point for point in row.roofline.points if _is_drawable(point)]
    return sorted(points, key=lambda point: (-point.device_ns, point.operator, point.dtype or ""))


def _left_out(roof: Roofline, small: Sequence[RooflinePoint]) -> Iterator[str]:
    if small:
        time = fmt.duration(sum(point.device_ns for point in small))
        yield f"{fmt.plural(len(small), 'operator')} of little time, in the table alone: {time}"
    yield from (f"{one.reason}: {fmt.duration(one.device_ns)}" for one in roof.left_out)


def _is_drawable(point: RooflinePoint) -> bool:
    values = (point.intensity, point.operations_per_s)
    return all(math.isfinite(value) and value > 0 for value in values)


def _ridges(roof: Roofline) -> list[float]:
    """The corners of the roof, with room to their right for the ceiling."""
    return [2 * one.ridge for one in roof.ceilings if one.ridge is not None and one.ridge > 0]


def _power_of_ten(power: int) -> str:
    """A power of ten as an axis writes it."""
    return f"{10**power:,}" if 0 <= power < 5 else f"{10.0**power:g}"


def _lines(roof: Roofline, across: LogAxis, up: LogAxis) -> Iterator[Line]:
    bandwidth = roof.memory_bytes_per_s
    left, right = 10.0**across.first, 10.0**across.last
    ceilings = [one for one in roof.ceilings if one.flops_per_s > 0]
    highest = max((one.flops_per_s for one in ceilings), default=10.0**up.last)
    if bandwidth is not None and bandwidth > 0:
        start = max(left, 10.0**up.first / bandwidth)
        end = min(right, highest / bandwidth)
        if start < end:
            yield Line(
                "memory",
                f"memory {fmt.rate(bandwidth, 'B/s')}",
                across.place(start),
                up.place(start * bandwidth),
                across.place(end),
                up.place(end * bandwidth),
            )
    for one in ceilings:
        corner = left if not bandwidth or bandwidth <= 0 else min(max(one.flops_per_s / bandwidth, left), right)
        y = up.place(one.flops_per_s)
        label = f"{shorten(one.precision, 12)} {fmt.rate(one.flops_per_s, 'FLOP/s')}"
        yield Line("compute", label, across.place(corner), y, across.place(right), y)


def _dot(point: RooflinePoint, place: int, longest: int, across: LogAxis, up: LogAxis) -> Dot:
    share = min(max(point.device_ns, 0) / longest, 1.0)
    reached = "" if point.share is None else f", {fmt.roofline(point.share)} of the roofline"
    title = (
        f"{place}. {shorten(point.operator, 80)}: {fmt.duration(point.device_ns)}, "
        f"{fmt.rate(point.operations_per_s, 'OP/s')}{reached}"
    )
    return Dot(
        kind=point.bound or "unknown",
        x=across.place(point.intensity),
        y=up.place(point.operations_per_s),
        radius=_SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(share),
        number=str(place) if place <= _MOST_NUMBERS else "",
        title=title,
    )


def roofline_table(rating: DeviceEfficiency | None, limits: Limits) -> Table:
    """The points in words, those that take most time first, numbered as in the drawing."""
    points = [] if rating is None else _ranked(rating)
    columns = (
        Column("Operator", "name"), Column("No.", note="In the drawing", priority=5), Column("Type", "text"),
        Column("Time", priority=1),
        Column("OP/B", note="Operations per byte that must be moved", priority=4), Column("OP/s", priority=2),
        Column("B/s"),
        Column("Roofline", note="Share of what the device allows at this intensity", priority=1),
        Column("Headroom", note="Time that would be saved at the roofline", priority=2), Column("Limit", "text"),
    )  # fmt: skip
    rows = (
        (
            tables.name(point.operator, limits),
            tables.identifier(place),
            tables.name(point.dtype, limits),
            tables.duration(point.device_ns),
            Cell(_intensity(point.intensity), point.intensity if math.isfinite(point.intensity) else None),
            tables.rate(point.operations_per_s, "OP/s"),
            tables.rate(point.bytes_per_s, "B/s"),
            tables.roofline(point.share),
            tables.duration(point.headroom_ns),
            Cell(point.bound or fmt.UNKNOWN, point.bound),
        )
        for place, point in enumerate(points[: limits.rows], 1)
    )
    caption = "Operators by device time: what they did, and what the device would allow."
    return tables.table("roofline", "Roofline", caption, columns, rows, total=len(points))


def _intensity(value: float) -> str:
    return fmt.significant(Decimal(value)) if math.isfinite(value) else fmt.UNKNOWN
