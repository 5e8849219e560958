"""What the HTML page shows, cut to a budget: views that the template walks through without deciding anything."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from whystall.analysis.results import Device, Lane, Timeline
from whystall.report import format as fmt
from whystall.report.charts import Curve, Node, StepColumn, curve, icicle, step_columns
from whystall.report.names import clean, shorten
from whystall.report.overview import Bar, Segment, bar_of, empty_parts, headline, headline_rank, in_order, segments
from whystall.report.ranks import RankReport, by_rank, device_name, device_title
from whystall.report.roofline_chart import RooflineView, roofline_view
from whystall.report.schema import Report
from whystall.report.sections import capture, chains, program, resources, run
from whystall.report.sections import device as device_tables
from whystall.report.tables import Limits, Table
from whystall.report.vocabulary import ABSENT, class_colour

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
    has_step: bool


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
    return LedgerView(bar, device_title(bar.device), tuple(own.values()), rows, empty, bar.step is not None)


@dataclass(frozen=True, slots=True)
class TimelineView:
    """A timeline as data for the canvas, and its longest events as a table."""

    data: dict[str, object]
    events: Table
    omitted: int
    caption: str


def timeline_view(timeline: Timeline, budget: Budget, events: int) -> TimelineView:
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
        "names": [
            shorten(device_tables.named(timeline.names, index) or "(no name)", _TIMELINE_NAME) for index in names
        ],
        "classes": [clean(name, 30) for name in classes],
        "colours": [class_colour(name) for name in classes],
        "lanes": drawn,
    }
    step = f"Step {clean(timeline.step, 60)}" if timeline.step else "The whole recording"
    caption = f"{step}, {fmt.duration(timeline.window_ns)}, one row per stream and launching thread."
    limits = Limits(min(budget.rows, 20), budget.name, budget.full)
    return TimelineView(data, device_tables.longest_events(timeline, limits), total - len(kept), caption)


def _busiest(lanes: Sequence[Lane]) -> list[Lane]:
    """The lanes with most events, in the order in which they were given."""
    ranked = sorted(range(len(lanes)), key=lambda number: (-len(lanes[number].events), number))[:_MOST_LANES]
    return [lanes[number] for number in sorted(ranked)]


def _longest(lanes: Sequence[Lane], events: int) -> set[tuple[int, int]]:
    """Lane and place of the longest events."""
    by_length = (
        (event[1], -number, -place) for number, lane in enumerate(lanes) for place, event in enumerate(lane.events)
    )
    return {(-number, -place) for _, number, place in heapq.nlargest(events, by_length)}


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device's part of a rank's section."""

    id: str
    title: str
    ledger: LedgerView | None
    steps: Table
    columns: tuple[StepColumn, ...]
    timeline: TimelineView | None
    roofline: RooflineView | None
    uncovered: Table
    facts: Table
    streams: Table
    undecided: Table


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank's section."""

    rank: int
    title: str
    devices: tuple[DeviceView, ...]
    omitted_devices: int
    families: Table
    kernels: Table
    chains: Table
    origins: Table
    fused: Table
    operators: Table
    modules: Table
    icicle: tuple[Node, ...]
    icicle_depth: int
    phases: Table
    communication: Table
    memory: Table
    curves: tuple[Curve, ...]
    input: Table
    threads: Table
    calls: Table

    @property
    def absent(self) -> tuple[tuple[str, str], ...]:
        """The sections that have nothing to show, each with the reason."""
        there = {
            "steps": any(view.steps for view in self.devices),
            "timeline": any(view.timeline for view in self.devices),
            "kernels": bool(self.kernels),
            "operators": bool(self.operators),
            "modules": bool(self.modules),
            "phases": bool(self.phases),
            "communication": bool(self.communication),
            "memory": bool(self.memory),
            "input": bool(self.input),
            "host": bool(self.threads or self.calls),
        }
        return tuple((name.capitalize(), ABSENT[name]) for name, present in there.items() if not present)


def _device_view(device: Device, rank: RankReport, budget: Budget, events: int, *, top: Bar | None) -> DeviceView:
    timeline = rank.timeline_of(device)
    rating = rank.rating_of(device)
    drawable = timeline is not None and any(lane.events for lane in timeline.lanes)
    return DeviceView(
        id=f"r{device.rank}d{device.device}",
        title=device_name(device),
        ledger=None if top is not None and top.device is device else ledger_view(bar_of(device, rank)),
        steps=device_tables.steps(device, budget.limits),
        columns=step_columns(device),
        timeline=timeline_view(timeline, budget, events) if timeline and drawable else None,
        roofline=None if rating is None else roofline_view(rating, budget.limits),
        uncovered=device_tables.uncovered(rating, device, budget.limits),
        facts=device_tables.facts(device, budget.limits),
        streams=device_tables.streams(device, budget.limits),
        undecided=capture.undecided(device, budget.limits),
    )


def _rank_view(rank: RankReport, budget: Budget, events: int, *, top: Bar | None) -> RankView:
    limits = budget.limits
    nodes = icicle(rank.modules, budget.nodes)
    names = ", ".join(device_name(device) for device in rank.devices[:2])
    return RankView(
        rank=rank.rank,
        title=f"Rank {rank.rank}" + (f" · {names}" if names else ""),
        devices=tuple(_device_view(device, rank, budget, events, top=top) for device in rank.devices[: budget.devices]),
        omitted_devices=max(len(rank.devices) - budget.devices, 0),
        families=device_tables.families(rank, limits),
        kernels=device_tables.kernels(rank, limits),
        chains=chains.fusible(rank, limits),
        origins=chains.origins(rank, limits),
        fused=chains.fused(rank, limits),
        operators=program.operators(rank, limits),
        modules=program.modules(rank, limits),
        icicle=nodes,
        icicle_depth=max((node.depth + 1 for node in nodes), default=0),
        phases=program.phases(rank, limits),
        communication=resources.communication(rank, limits),
        memory=resources.memory(rank, limits),
        curves=tuple(drawn for peak in rank.memory[: min(budget.rows, 16)] if (drawn := curve(peak))),
        input=resources.waits(rank, limits),
        threads=program.threads(rank, limits),
        calls=program.calls(rank, limits),
    )


@dataclass(frozen=True, slots=True)
class Page:
    """Everything the template needs."""

    top: LedgerView | None
    devices: Table
    bars: tuple[Bar, ...]
    ranks: tuple[RankView, ...]
    shown: frozenset[int]
    omitted_ranks: int
    experiments: Table
    run: Table
    slow: Table
    files: Table
    dropped: Table
    signals: Table


def page(report: Report, budget: Budget) -> Page:
    """The report cut to the budget."""
    ranks = by_rank(report)
    top = headline(report, ranks)
    shown = _ranks_to_show(ranks, budget.ranks, headline_rank(top, ranks))
    alone = top if len(report.devices) == 1 else None
    timelines = max(sum(len(rank.timelines) for rank in shown), 1)
    wide = Limits(budget.overview, budget.name, 0)
    return Page(
        top=ledger_view(top) if top else None,
        devices=device_tables.devices(in_order(report), wide),
        bars=tuple(_bars(report, ranks, budget)),
        ranks=tuple(_rank_view(rank, budget, budget.events // timelines, top=alone) for rank in shown),
        shown=frozenset(rank.rank for rank in shown),
        omitted_ranks=len(ranks) - len(shown),
        experiments=run.experiments(report, budget.limits),
        run=run.steps(report, budget.limits),
        slow=run.slow(report, budget.limits),
        files=capture.files(report, budget.limits),
        dropped=capture.dropped(report, budget.limits),
        signals=capture.signals(report, budget.limits),
    )


def _ranks_to_show(ranks: Sequence[RankReport], most: int, needed: RankReport | None) -> list[RankReport]:
    """The first ranks, and the one that the verdict speaks of."""
    first = sorted(ranks, key=lambda rank: (rank is not needed, rank.rank))[:most]
    return sorted(first, key=lambda rank: rank.rank)


def _bars(report: Report, ranks: tuple[RankReport, ...], budget: Budget) -> Iterator[Bar]:
    owner = {rank.rank: rank for rank in ranks}
    for device in in_order(report)[: budget.overview]:
        yield bar_of(device, owner[device.rank])
