"""Content of the HTML page, cut to a budget: views that the template walks through without deciding anything."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from whystall.analysis.groups import stages
from whystall.analysis.results import Device, Lane, Timeline
from whystall.analysis.run_results import SideBySide
from whystall.report import format as fmt
from whystall.report.charts import curve, icicle, step_columns, step_curves
from whystall.report.names import clean, shorten
from whystall.report.overview import (
    Bar,
    Segment,
    bar_of,
    bars_beside,
    devices_to_show,
    empty_parts,
    headline,
    headline_rank,
    segments,
)
from whystall.report.ranks import DeviceReport, RankReport, by_rank, device_name, device_title
from whystall.report.roofline_chart import roofline_view
from whystall.report.schema import Report
from whystall.report.sections.device import named
from whystall.report.sections.hosts import by_host
from whystall.report.sections.registry import CHAPTERS, SECTIONS, Chapter
from whystall.report.sections.section import Scope, Section, of_scope
from whystall.report.strip import StripView, strip
from whystall.report.tables import Limits, Table
from whystall.report.vocabulary import class_colour
from whystall.vocabulary.collectives import kind_named

_OVERVIEW = "devices"  # stands beside the devices' bars, one row per bar
_TIMELINE_NAME = 80
_MOST_LANES = 24


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a report goes into one page."""

    ranks: int
    devices: int
    rows: int
    name: int
    full: int
    events: int
    overview: int
    nodes: int

    @property
    def limits(self) -> Limits:
        """The budget of one table."""
        return Limits(self.rows, self.name, self.full)


BUDGETS: tuple[Budget, ...] = (
    Budget(ranks=16, devices=8, rows=100, name=96, full=400, events=12_000, overview=256, nodes=400),
    Budget(ranks=8, devices=4, rows=60, name=96, full=300, events=6_000, overview=128, nodes=300),
    Budget(ranks=4, devices=4, rows=40, name=80, full=200, events=3_000, overview=64, nodes=200),
    Budget(ranks=2, devices=2, rows=20, name=72, full=120, events=1_000, overview=64, nodes=120),
    Budget(ranks=1, devices=1, rows=10, name=60, full=80, events=300, overview=32, nodes=60),
)
"""From generous to minimal: the first whose page is small enough is used."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One line of the legend: a part of the step, and of the whole recording."""

    segment: Segment | None
    whole: Segment | None
    explanation: str

    @property
    def shown(self) -> Segment:
        """The segment that names and colours the row."""
        shown = self.segment or self.whole
        if shown is None:
            raise ValueError("a ledger row needs a segment")
        return shown


@dataclass(frozen=True, slots=True)
class LedgerView:
    """A bar with its legend."""

    bar: Bar
    title: str
    segments: tuple[Segment, ...]
    rows: tuple[LedgerRow, ...]
    empty: tuple[str, ...]
    others: tuple[Bar, ...]
    """A usual and a slow step, where the bar is the mean of steps that differ."""


def ledger_view(bar: Bar) -> LedgerView:
    """The bar's parts beside those of the whole recording."""
    own = {segment.part.key: segment for segment in bar.segments}
    whole = {segment.part.key: segment for segment in segments(bar.device.ledger)}
    keys = [key for key in bar.ledger.parts() if key in own or key in whole]
    rows = tuple(
        LedgerRow(own.get(key), whole.get(key), (own.get(key) or whole[key]).part.explained(bar.device.kind))
        for key in keys
    )
    empty = tuple(label for label in empty_parts(bar.ledger) if label in empty_parts(bar.device.ledger))
    others = bars_beside(bar.device)
    return LedgerView(bar, device_title(bar.device), tuple(own.values()), rows, empty, others)


@dataclass(frozen=True, slots=True)
class TimelineView:
    """A timeline as data for the canvas."""

    data: dict[str, object]
    omitted: int
    caption: str


def timeline_view(timeline: Timeline, events: int) -> TimelineView:
    """The longest events of the busiest lanes, times from the start of the step, names in use only."""
    total = sum(len(lane.events) + lane.coalesced for lane in timeline.lanes)
    lanes = _busiest(timeline.lanes)
    kept = _longest(lanes, events)
    names: dict[int, int] = {}
    drawn: list[dict[str, object]] = []
    classes = timeline.classes or ["unknown"]
    for number, lane in enumerate(lanes):
        flat: list[int] = []
        for place, (start, length, name, kind) in enumerate(lane.events):
            if (number, place) in kept:
                flat += (
                    start,
                    length,
                    names.setdefault(name, len(names)),
                    kind if 0 <= kind < len(timeline.classes) else 0,
                )
        drawn.append({"label": clean(lane.label, 60), "kind": lane.kind, "events": flat})
    data: dict[str, object] = {
        "window": timeline.window_ns,
        "names": [shorten(named(timeline.names, index) or "(no name)", _TIMELINE_NAME) for index in names],
        "classes": [clean(name, 30) for name in classes],
        "colours": [class_colour(name) for name in classes],
        "lanes": drawn,
    }
    step = f"Step {clean(timeline.step, 60)}" if timeline.step else "The whole recording"
    caption = f"{step}, {fmt.duration(timeline.window_ns)}, one row per stream and launching thread."
    return TimelineView(data, total - len(kept), caption)


def _busiest(lanes: Sequence[Lane]) -> list[Lane]:
    """The lanes with most events, in their original order."""
    ranked = sorted(range(len(lanes)), key=lambda number: (-len(lanes[number].events), number))[:_MOST_LANES]
    return [lanes[number] for number in sorted(ranked)]


def _longest(lanes: Sequence[Lane], events: int) -> set[tuple[int, int]]:
    """Lane and place of the longest events."""
    by_length = (
        (event[1], -number, -place) for number, lane in enumerate(lanes) for place, event in enumerate(lane.events)
    )
    return {(-number, -place) for _, number, place in heapq.nlargest(events, by_length)}


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing above a chapter's tables: its macro, its content, and a sentence before it."""

    macro: str
    view: object
    lead: str = ""


@dataclass(frozen=True, slots=True)
class ChapterView:
    """A heading with its content; ``tables`` come with whether readers can filter them."""

    id: str
    title: str
    listed: bool
    figure: Figure | None
    tables: tuple[tuple[Table, bool], ...]


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device's part of a rank's section."""

    id: str
    title: str
    ledger: LedgerView | None
    chapters: tuple[ChapterView, ...]


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank's section."""

    rank: int
    title: str
    devices: tuple[DeviceView, ...]
    omitted_devices: int
    chapters: tuple[ChapterView, ...]
    absent: tuple[tuple[str, str], ...]
    """The chapters that have nothing to show, each with the reason."""


_Part = Report | RankReport | DeviceReport
_NO_FIGURES: Mapping[str, Callable[[], Figure | None]] = MappingProxyType({})


def _chapters(
    sections: Sequence[Section],
    scope: Scope,
    part: _Part,
    budget: Budget,
    figures: Mapping[str, Callable[[], Figure | None]] = _NO_FIGURES,
) -> Iterator[ChapterView]:
    """The chapters made from a part of the report, in the page's order; those without a row are left out."""
    found: dict[str, list[tuple[Table, bool]]] = {}
    for section in of_scope(sections, scope):
        if section.page:
            rows = min(budget.rows, section.page.rows or budget.rows)
            table = section.build(part, Limits(rows, budget.name, budget.full))
            found.setdefault(section.chapter, []).append((table, section.page.filter))
    for chapter in _in_order_of_the_page(found):
        tables = tuple(found[chapter.id])
        if any(table for table, _ in tables):
            figure = figures[chapter.id]() if chapter.id in figures else None
            yield ChapterView(chapter.id, chapter.title, chapter.listed, figure, tables)


def _in_order_of_the_page(ids: Iterable[str]) -> list[Chapter]:
    """The chapters with these ids; those that no list names come last, under a title made of their id."""
    known = {chapter.id for chapter in CHAPTERS}
    others = [Chapter(name, name.replace("-", " ").capitalize()) for name in ids if name not in known]
    wanted = set(ids)
    return [*(chapter for chapter in CHAPTERS if chapter.id in wanted), *others]


def _absent(sections: Sequence[Section], there: Iterable[ChapterView]) -> tuple[tuple[str, str], ...]:
    """The missing chapters of devices and ranks, each with the reason."""
    found = {chapter.id for chapter in there}
    reasons = {
        section.chapter: section.absent
        for section in sections
        if section.page and section.absent and section.scope in {"device", "rank"} and section.chapter not in found
    }
    return tuple((chapter.title, reasons[chapter.id]) for chapter in _in_order_of_the_page(reasons))


def _device_view(
    one: DeviceReport, sections: Sequence[Section], budget: Budget, events: int, top: Bar | None
) -> DeviceView:
    device, timeline, rating = one.device, one.timeline, one.rating
    figures: dict[str, Callable[[], Figure | None]] = {
        "steps": lambda: Figure("step_chart", step_columns(device)),
        "timeline": lambda: _timeline_figure(timeline, events) if timeline else None,
        "roofline": lambda: Figure("roofline", roofline_view(rating)) if rating else None,
    }
    return DeviceView(
        id=f"r{device.rank}d{device.device}",
        title=device_name(device),
        ledger=None if top is not None and top.device is device else ledger_view(bar_of(device)),
        chapters=tuple(_chapters(sections, "device", one, budget, figures)),
    )


def _timeline_figure(timeline: Timeline, events: int) -> Figure:
    view = timeline_view(timeline, events)
    return Figure("timeline", view, view.caption)


def _side_by_side_figure(two: SideBySide | None, events: int) -> Figure | None:
    if two is None:
        return None
    view = timeline_view(two.drawn, events // 2)
    lead = (
        f"Rank {two.late} and, below, what rank {two.waiting}, which waits longest for others, does at the same time, "
        "on one clock."
    )
    return Figure("timeline", replace(view, caption=f"{view.caption} {lead}"), lead)


def _rank_view(
    rank: RankReport, sections: Sequence[Section], budget: Budget, events: int, *, top: Bar | None
) -> RankView:
    names = ", ".join(device_name(device) for device in rank.devices[:2])
    devices = tuple(
        _device_view(rank.of_device(device), sections, budget, events, top) for device in rank.devices[: budget.devices]
    )
    figures: dict[str, Callable[[], Figure | None]] = {
        "modules": lambda: Figure("icicle", icicle(rank.modules, budget.nodes)),
        "memory": lambda: Figure(
            "curves", tuple(drawn for peak in rank.memory[: min(budget.rows, 16)] if (drawn := curve(peak)))
        ),
    }
    chapters = tuple(_chapters(sections, "rank", rank, budget, figures))
    return RankView(
        rank=rank.rank,
        title=f"Rank {rank.rank}" + (f" · {names}" if names else ""),
        devices=devices,
        omitted_devices=max(len(rank.devices) - budget.devices, 0),
        chapters=chapters,
        absent=_absent(sections, [*chapters, *(chapter for device in devices for chapter in device.chapters)]),
    )


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the template needs."""

    top: LedgerView | None
    job: tuple[ChapterView, ...]
    devices: Table
    bars: tuple[Bar, ...]
    strip: StripView | None
    ranks: tuple[RankView, ...]
    shown: frozenset[int]
    omitted_ranks: int
    capture: tuple[ChapterView, ...]


def page(report: Report, budget: Budget, sections: Sequence[Section] = SECTIONS) -> Page:
    """The report cut to the budget."""
    ranks = by_rank(report)
    top = headline(report)
    shown = _ranks_to_show(ranks, budget.ranks, headline_rank(top, ranks))
    alone = top if len(report.devices) == 1 else None
    timelines = max(sum(len(rank.timelines) for rank in shown), 1)
    figures = {
        "run": lambda: Figure("paces", step_curves(report.run[: budget.ranks])),
        "meetings": lambda: _side_by_side_figure(report.side_by_side, budget.events),
    }
    devices = sorted(report.devices, key=lambda device: (device.rank, device.device))
    overview = next(section for section in sections if section.id == _OVERVIEW)
    return Page(
        top=ledger_view(top) if top else None,
        job=tuple(_chapters([one for one in sections if one is not overview], "job", report, budget, figures)),
        devices=overview.build(report, Limits(budget.overview, budget.name, 0)),
        bars=tuple(bar_of(device) for device in devices_to_show(report, budget.overview)),
        strip=_strip(report, devices, budget.overview),
        ranks=tuple(_rank_view(rank, sections, budget, budget.events // timelines, top=alone) for rank in shown),
        shown=frozenset(rank.rank for rank in shown),
        omitted_ranks=len(ranks) - len(shown),
        capture=tuple(_chapters(sections, "capture", report, budget)),
    )


def _strip(report: Report, devices: Sequence[Device], columns: int) -> StripView | None:
    """All devices stage by stage where messages show the stages of a pipeline, else host by host."""
    told = (row.ranks for row in report.communication if kind_named(row.collective) == "send_recv" and row.ranks)
    stage_of = stages(pair for pair in told if len(pair) == 2)
    if not stage_of or any(device.rank not in stage_of for device in devices):
        hosts = by_host(devices, report.source.files)
        return strip([one for own in hosts for one in own] or devices, [len(own) for own in hosts], columns)
    ordered = sorted(devices, key=lambda device: (stage_of[device.rank], device.rank, device.device))
    sizes = Counter(stage_of[device.rank] for device in ordered)
    return strip(ordered, [sizes[stage] for stage in sorted(sizes)], columns, of="stages of the pipeline")


def _ranks_to_show(ranks: Sequence[RankReport], most: int, needed: RankReport | None) -> list[RankReport]:
    """The one that the verdict speaks of, and the first of those that were looked at in depth."""
    known = [rank for rank in ranks if rank.in_depth or rank is needed]
    first = sorted(known, key=lambda rank: (rank is not needed, rank.rank))[:most]
    return sorted(first, key=lambda rank: rank.rank)
