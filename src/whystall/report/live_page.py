"""A running job on one page: its progress, its slowdowns, its findings so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whystall.report import tables
from whystall.report.document import Document, Heading, Lines, Link, Part, Points, Row, grid
from whystall.report.findings import gain_words
from whystall.report.format import UNKNOWN, duration
from whystall.report.schema import Report

_LEAST_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class LiveRank:
    """One rank at the last look: its steps, and the pace of the latest ones where that is known."""

    rank: int
    steps: int
    median_ns: int | None
    shares: Mapping[str, float]
    ratio: float | None
    """How many times as long as the first steps the latest take."""


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A run at the last look; ``said`` are the latest changes, each with its time of day."""

    run: str
    ended: bool
    ranks: Sequence[LiveRank]
    said: Sequence[str]
    report: Report | None


def live_document(job: LiveJob, *, whole_report: str) -> Document:
    """The parts of the page; ``whole_report`` is the place of the page with the report so far."""
    headline = _headline(job)
    parts: list[Part] = [headline]
    if job.ranks:
        parts += [Heading("Pace of the latest steps"), _pace(job.ranks)]
    if job.report is not None:
        parts += [Heading("Found so far", job.report.verdict.summary), *_found(job.report)]
        parts.append(Link("The whole report so far", whole_report))
    if job.said:
        parts += [Heading("Changes, the latest first"), Points(tuple(reversed(job.said)))]
    return Document("watch", headline, tuple(parts))


def _headline(job: LiveJob) -> str:
    slowest = max(job.ranks, key=lambda one: one.median_ns or 0, default=None)
    if slowest is None:
        return f"{job.run}: no step has ended yet"
    pace = "" if slowest.median_ns is None else f", {duration(slowest.median_ns)} each"
    steps = max(one.steps for one in job.ranks)
    return f"{job.run}: {'ended at ' if job.ended else ''}step {steps:,}{pace}"


def _pace(ranks: Sequence[LiveRank]) -> Part:
    named = sorted({part for one in ranks for part, of in one.shares.items() if of >= _LEAST_SHARE})
    rows: list[Row] = [
        (
            tables.identifier(one.rank),
            tables.count(one.steps),
            tables.duration(one.median_ns),
            UNKNOWN if one.ratio is None else tables.Cell(f"{one.ratio:.2f} x", one.ratio),
            *(tables.share(one.shares.get(part)) for part in named),
        )
        for one in ranks
    ]
    return grid("Each rank", ("rank", "steps", "a step", "of the first steps", *named), rows)


def _found(report: Report) -> list[Part]:
    rows: list[Row] = [(one.title, one.id, gain_words(one.gain)) for one in report.findings if one.gain is not None]
    if not rows:
        return [Lines(("No cause has been named yet.",))]
    return [grid("Causes with what removing each is worth", ("finding", "cause", "speed-up"), rows)]
