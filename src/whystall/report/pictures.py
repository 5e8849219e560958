"""The small picture beside a finding: where in a step its cause is at work, and how long a step would be without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from whystall.diagnosis.finding import Finding, Gain
from whystall.report import format as fmt
from whystall.report.names import clean

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


def picture_of(finding: Finding, gain: Gain | None) -> PictureView | None:
    """The picture of a finding that has a gain or marks."""
    place = finding.in_step
    if place is None and gain is None:
        return None
    marks = place.marks[:_MOST_MARKS] if place is not None and place.window_ns > 0 else []
    whole = place.window_ns if place is not None else 1
    bars = tuple(_bar(begin / whole, max(length, 0) / whole) for begin, length in marks)
    low, high = (1 / max(gain.ceiling, 1.0), 1 / max(gain.floor, 1.0)) if gain is not None else (0.0, 0.0)
    return PictureView(
        marks=bars,
        after=_bar(0.0, 1 / max(gain.expected, 1.0)) if gain is not None else None,
        unsure=_bar(low, high - low) if gain is not None else None,
        words=" ".join(filter(None, [_where(finding), _after(gain)])),
        timeline=f"r{place.rank}d{place.device}-timeline-figure" if place is not None and bars else None,
        shown=tuple((begin, begin + length) for begin, length in marks),
    )


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
