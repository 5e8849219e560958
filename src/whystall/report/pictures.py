"""The small picture beside a finding: where in a step its cause is at work, and how long a step would be without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from whystall.diagnosis.finding import Finding, Gain
from whystall.report import format as fmt
from whystall.report.names import clean
from whystall.report.schema import Report

WIDE: Final = 1000
"""The width of a step in a picture, in its own units."""
_NARROWEST: Final = 2.0
_MOST_MARKS: Final = 120


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a step, in units of `WIDE`."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class PictureView:
    """A step with marks, the same step without the cause below it, and both in words."""

    marks: tuple[Bar, ...]
    after: Bar | None
    unsure: Bar | None
    """Between the shortest and the longest that a step may be without it."""
    words: str
    timeline: str | None
    """The figure that draws the step, on a page that has it."""
    shown: tuple[tuple[int, int], ...]
    """The marks there: begin and end in nanoseconds."""
    steps: bool = False
    """Whether the steps of the whole run are drawn, of a cause that no single recorded step shows."""


def picture_of(finding: Finding, gain: Gain | None, report: Report | None = None) -> PictureView | None:
    """The picture of a finding that has a gain or marks.

    A fact that no recorded step shows appears in the steps of the whole run, or in the whole timeline, where the report
    draws them.
    """
    place = finding.in_step
    if place is None and gain is None:
        return None
    marks = place.marks[:_MOST_MARKS] if place is not None and place.window_ns > 0 else []
    whole = place.window_ns if place is not None else 1
    watched = report is not None and bool(report.run) and not marks
    drawn = report.timelines if report is not None and not watched else []
    ranks = finding.scope.ranks
    anywhere = next((_figure(one.rank, one.device) for one in drawn if one.rank in ranks or not ranks), None)
    bars = tuple(_bar(begin / whole, max(length, 0) / whole) for begin, length in marks)
    low, high = (1 / max(gain.ceiling, 1.0), 1 / max(gain.floor, 1.0)) if gain is not None else (0.0, 0.0)
    return PictureView(
        marks=bars,
        after=_bar(0.0, 1 / max(gain.expected, 1.0)) if gain is not None else None,
        unsure=_bar(low, high - low) if gain is not None else None,
        words=" ".join(filter(None, [_where(finding), _after(gain)])),
        timeline=_figure(place.rank, place.device) if place is not None and bars else anywhere,
        shown=tuple((begin, begin + length) for begin, length in marks),
        steps=watched,
    )


def _figure(rank: int, device: int) -> str:
    return f"r{rank}d{device}-timeline-figure"


def _bar(begin: float, length: float) -> Bar:
    x = min(max(begin, 0.0), 1.0) * WIDE
    return Bar(round(x, 1), round(max(min(length * WIDE, WIDE - x), _NARROWEST), 1))


def _where(finding: Finding) -> str:
    place = finding.in_step
    if place is None or not place.marks:
        return ""
    time = sum(length for _, length in place.marks)
    step = f"In {clean(place.step, 60)}" if place.step else "In the recording"
    return f"{step} ({fmt.duration(place.window_ns)}) it is at work where marked, {fmt.duration(time)} in all."


def _after(gain: Gain | None) -> str:
    if gain is None:
        return ""
    what = "a step" if gain.of == "step" else "the recording"
    if not gain.step_ns:
        return f"Below: {what} without it."
    length, shortest, longest = (
        fmt.duration(round(gain.step_ns / max(times, 1.0))) for times in (gain.expected, gain.ceiling, gain.floor)
    )
    return f"Below: {what} without it, {length} ({shortest} to {longest}) of {fmt.duration(gain.step_ns)}."
