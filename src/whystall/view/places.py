"""The place of a finding in a recording: the stretch around it, its intervals, the one that shows it best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from whystall.analysis.results import Timeline
from whystall.analysis.trace_analysis import origin_of
from whystall.diagnosis.finding import EvidenceEvent, Finding, InStep
from whystall.report.schema import Report
from whystall.trace.model import Trace

Interval = tuple[int, int]
"""Begin and end in nanoseconds, on the trace's own clock."""

# The margin around an event without a step: this many times its length on either side, and at least a millisecond.
_AROUND: Final = 10
_LEAST_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """A stretch of one rank's recording, and its content."""

    rank: int
    device: int
    window: Interval
    marks: tuple[Interval, ...]

    @property
    def focus(self) -> Interval | None:
        """The longest of the marks (the first of several)."""
        return max(self.marks, key=lambda mark: (mark[1] - mark[0], -mark[0]), default=None)


def rank_of(report: Report, finding: Finding | None) -> int | None:
    """The rank whose recording shows a finding (without one: the verdict's); ``None`` where nothing was recorded."""
    recorded = {file.rank for file in report.source.files if file.in_depth}
    wanted = [report.verdict.rank]
    if finding is not None:
        shown = [event.rank for one in finding.evidence for event in one.events]
        wanted = [finding.in_step.rank] if finding.in_step else [*shown, *finding.scope.ranks, *wanted]
    return next((rank for rank in wanted if rank in recorded), min(recorded, default=None))


def place_of(report: Report, finding: Finding | None, rank: int, trace: Trace) -> Place:
    """Where ``trace``, the recording of ``rank``, shows a finding; without one its representative step."""
    origin = origin_of(trace)
    if finding is not None and finding.in_step is not None:
        timeline = _timeline(report, rank, finding.in_step.device)
        if timeline is not None:
            return _in_step(finding.in_step, timeline, origin, trace)
    events = [event for one in (finding.evidence if finding else []) for event in one.events if event.rank == rank]
    if events:
        return _around(report, max(events, key=lambda event: event.duration_ns), origin, rank)
    timeline = _timeline(report, rank, report.verdict.device)
    if timeline is None:
        return Place(rank, 0, (origin, _end_of(trace)), ())
    return Place(rank, timeline.device, _with_host(trace, timeline, origin), ())


def _timeline(report: Report, rank: int, device: int | None) -> Timeline | None:
    own = [one for one in report.timelines if one.rank == rank]
    return next((one for one in own if one.device == device), own[0] if own else None)


def _in_step(place: InStep, timeline: Timeline, origin: int, trace: Trace) -> Place:
    begin = origin + timeline.start_ns
    marks = tuple((begin + at, begin + at + length) for at, length in place.marks)
    return Place(place.rank, place.device, _with_host(trace, timeline, origin), marks)


def _with_host(trace: Trace, timeline: Timeline, origin: int) -> Interval:
    """The step on the device, and before it on the host, which launched it."""
    begin, end = origin + timeline.start_ns, origin + timeline.start_ns + timeline.window_ns
    steps = zip(trace.steps["name"].to_list(), trace.steps["ts_ns"].to_list(), strict=True)
    starts = [start for name, start in steps if name == timeline.step and start < end]
    return min([begin, *starts[-1:]]), end


def _around(report: Report, event: EvidenceEvent, origin: int, rank: int) -> Place:
    """The step that an event stands in, or a stretch around it."""
    mark = (event.ts_ns, event.ts_ns + max(event.duration_ns, 1))
    devices = [device for device in report.devices if device.rank == rank]
    for device in devices:
        for step in device.steps:
            begin = origin + step.start_ns
            if begin <= mark[0] < begin + step.window_ns:
                return Place(rank, device.device, (begin, max(begin + step.window_ns, mark[1])), (mark,))
    more = max((mark[1] - mark[0]) * _AROUND, _LEAST_NS)
    return Place(rank, devices[0].device if devices else 0, (mark[0] - more, mark[1] + more), (mark,))


def _end_of(trace: Trace) -> int:
    tables = (trace.device_events, trace.operators, trace.annotations, trace.python_functions, trace.runtime_calls)
    ends = [(table["ts_ns"] + table["duration_ns"]).max() for table in tables if len(table)]
    return max((int(end) for end in ends if isinstance(end, int)), default=1)
