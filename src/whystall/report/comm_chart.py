"""Where the marks of a collective's times by size lie, in percent of their frame; both axes are logarithmic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from whystall.probe.comm.results import Measured
from whystall.report.format import duration, size
from whystall.report.log_axes import LogAxis, Tick


@dataclass(frozen=True, slots=True)
class Step:
    """The line from one size to the next."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class Dot:
    """A size: its time, and between which heights four fifths of the iterations lie."""

    x: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True, slots=True)
class SizeChart:
    """The drawing of one collective."""

    summary: str
    caption: str
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    lines: tuple[Step, ...]
    dots: tuple[Dot, ...]


def size_chart(collective: str, rows: Sequence[Measured]) -> SizeChart:
    """The times of a collective by size."""
    rows = sorted(rows, key=lambda one: one.bytes)
    across = LogAxis.across([one.bytes for one in rows], base=2)
    up = LogAxis.up([ns for one in rows for ns in (one.low_ns, one.time_ns, one.high_ns)])
    dots = tuple(
        Dot(
            across.place(one.bytes),
            up.place(one.time_ns),
            up.place(one.low_ns),
            up.place(one.high_ns),
            f"{size(one.bytes)}: {duration(one.time_ns)}",
        )
        for one in rows
    )
    return SizeChart(
        summary=f"Time of {collective} by size, both logarithmic",
        caption="Across: size. Up: time; the bars hold four fifths of the iterations.",
        across=across.ticks(lambda power: _short(size(2**power))),
        up=up.ticks(lambda power: _short(duration(10**power))),
        lines=tuple(Step(one.x, one.y, other.x, other.y) for one, other in pairwise(dots)),
        dots=dots,
    )


def _short(text: str) -> str:
    """A whole number without zero decimals: there is little room below an axis."""
    number, _, unit = text.partition(" ")
    return f"{number.removesuffix('.00').removesuffix('.0')} {unit}"
