"""One device's account: intervals, ledger, idle causes, streams and steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystall.analysis import intervals
from whystall.analysis.host_states import HostEvents
from whystall.analysis.idle import IDLE_PARTS, SHORT_NS, IdleSplit, Launches, split_idle
from whystall.analysis.intervals import Cumulative, Gaps, Timeline
from whystall.analysis.kernel_classes import COMMUNICATION, COMPUTE, MEMORY
from whystall.analysis.results import (
    ClassCounts,
    Device,
    IdleCause,
    LaunchLinks,
    Ledger,
    ShortKernels,
    Step,
    Stream,
    UnknownTime,
)
from whystall.trace.columns import codes, distinct, rows_by_value
from whystall.trace.link import rows_of
from whystall.trace.model import Trace

_BUSY_PARTS: Final = {
    "compute": intervals.COMPUTE_RUNS,
    "communication": intervals.COMMUNICATION_NOT_COMPUTE,
    "memory": intervals.ONLY_MEMORY,
}
# A step is an outlier when it is this much longer than the median of its device's steps.
OUTLIER_RATIO: Final = 1.2
_LEAST_STEPS_FOR_OUTLIERS: Final = 4


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """One device's events in order of start, as columns; ``row`` is the row in ``Trace.device_events``."""

    row: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    class_of: NDArray[np.uint8]
    stream: NDArray[np.int64]
    step: NDArray[np.int32]
    launches: Launches

    @property
    def window(self) -> tuple[int, int]:
        """First start and last end."""
        return int(self.start[0]), int(self.end.max())

    def of(self, chosen: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
        """Start, end and class of the chosen events."""
        return self.start[chosen], self.end[chosen], self.class_of[chosen]


@dataclass(frozen=True, slots=True)
class DeviceAccount:
    """A device's events with everything that later analyses ask windows of."""

    events: DeviceEvents
    timeline: Timeline
    gaps: Gaps
    idle: IdleSplit
    busy_parts: dict[str, Cumulative]


def devices_of(trace: Trace, class_of: NDArray[np.uint8]) -> dict[int, DeviceEvents]:
    """The events of each device of a trace, devices in order."""
    table = trace.device_events
    device = table["device"].to_numpy()
    start = table["ts_ns"].to_numpy()
    end = start + table["duration_ns"].to_numpy()
    stream = table["stream"].to_numpy()
    step = rows_of(table["step"])
    launch = rows_of(table["launch"])
    calls = trace.runtime_calls
    call_start = np.append(calls["ts_ns"].to_numpy(), 0)
    call_end = np.append(calls["ts_ns"].to_numpy() + calls["duration_ns"].to_numpy(), 0)
    call_thread = np.append(calls["thread"].to_numpy(), -1).astype(np.int32)
    out = {}
    for number, row in rows_by_value(device).items():
        call = launch[row]
        first = np.full(len(call_start), np.iinfo(np.int64).max)
        np.minimum.at(first, call, start[row])
        launches = Launches(call >= 0, call_start[call], call_end[call], call_thread[call], first[call])
        out[number] = DeviceEvents(row, start[row], end[row], class_of[row], stream[row], step[row], launches)
    return out


def account_for(events: DeviceEvents, host: HostEvents) -> DeviceAccount:
    """Intervals, gaps and the split of idle time of one device."""
    timeline = intervals.class_timeline(events.start, events.end, events.class_of)
    gaps = intervals.gaps_between(events.start, events.end)
    busy = {part: timeline.cumulative(counted) for part, counted in _BUSY_PARTS.items()}
    return DeviceAccount(events, timeline, gaps, split_idle(gaps, events.launches, host), busy)


def ledger_within(account: DeviceAccount, begin: int, end: int) -> Ledger:
    """The ledger of a window whose begin is where an event starts (so that no gap straddles it)."""
    window = (np.array([begin]), np.array([end]))
    busy = {part: int(time.within(*window)[0]) for part, time in account.busy_parts.items()}
    inside = slice(*np.searchsorted(account.gaps.begin, (begin, end)))
    idle = dict(zip(IDLE_PARTS, account.idle.parts[inside].sum(axis=0).tolist(), strict=True))
    return Ledger(**busy, **idle)


def device_result(trace: Trace, rank: int, number: int, account: DeviceAccount, origin_ns: int) -> Device:
    """The device's numbers over the window from its first event's start to its last event's end."""
    events, timeline = account.events, account.timeline
    begin, end = events.window
    busy = timeline.total(intervals.ANY)
    streams = _streams(events)
    duration = events.end - events.start
    short = duration < SHORT_NS
    ledger = ledger_within(account, begin, end)
    other_accelerator = "accelerator" in distinct(trace.device_events["kind"])
    return Device(
        rank=rank,
        device=number,
        kind="accelerator" if other_accelerator else "gpu",
        name=trace.metadata.device_name(number),
        gpu_events=len(events.row),
        start_ns=begin - origin_ns,
        window_ns=end - begin,
        busy_ns=busy,
        idle_ns=end - begin - busy,
        compute_ns=timeline.total(intervals.COMPUTE_RUNS),
        communication_ns=timeline.total(intervals.COMMUNICATION_RUNS),
        memory_ns=timeline.total(intervals.MEMORY_RUNS),
        compute_communication_overlap_ns=timeline.total(intervals.COMPUTE_AND_COMMUNICATION),
        exposed_communication_ns=timeline.total(intervals.ONLY_COMMUNICATION),
        exposed_memory_ns=timeline.total(intervals.ONLY_MEMORY),
        kernel_sum_ns=int(duration.sum()),
        counts=ClassCounts(
            compute=int(np.count_nonzero(events.class_of == COMPUTE)),
            communication=int(np.count_nonzero(events.class_of == COMMUNICATION)),
            memory=int(np.count_nonzero(events.class_of == MEMORY)),
        ),
        ledger=ledger,
        idle_cause=_idle_cause(account),
        idle_unknown=_unknown(account, ledger),
        streams=streams,
        launch=LaunchLinks(
            linked=int(np.count_nonzero(events.launches.known)), unlinked=int(np.count_nonzero(~events.launches.known))
        ),
        short_kernels=ShortKernels(
            threshold_ns=SHORT_NS, count=int(np.count_nonzero(short)), total_ns=int(duration[short].sum())
        ),
        distinct_kernel_names=len(np.unique(codes(trace.device_events["name"])[events.row])),
        same_stream_overlaps=_same_stream_overlaps(events),
        steps=_steps(trace, account, origin_ns),
        steps_from=trace.steps_from,
    )


def _idle_cause(account: DeviceAccount) -> IdleCause:
    length = account.gaps.end - account.gaps.begin
    late, queued = account.idle.host_late, account.idle.queued
    return IdleCause(
        host_late_ns=int(length[late].sum()),
        queued_but_waiting_ns=int(length[queued].sum()),
        launch_unknown_ns=int(length[~late & ~queued].sum()),
        gaps=len(length),
    )


def _unknown(account: DeviceAccount, ledger: Ledger) -> list[UnknownTime]:
    out = []
    without_launch = ledger.idle_unknown - account.idle.silent_host_ns
    if without_launch:
        out.append(
            UnknownTime(
                reason="the launch of the next device event is not in the trace: it was made before the recording "
                "began, or its record was lost",
                missing_signal="launch calls",
                idle_ns=without_launch,
            )
        )
    if account.idle.silent_host_ns:
        out.append(
            UnknownTime(
                reason="nothing was recorded on the launching thread yet, or nothing any more, or no operators at all",
                missing_signal="host events",
                idle_ns=account.idle.silent_host_ns,
            )
        )
    return out


def _streams(events: DeviceEvents) -> list[Stream]:
    out = []
    for stream, mine in rows_by_value(events.stream).items():
        busy = intervals.class_timeline(*events.of(mine)).total(intervals.ANY)
        out.append(Stream(stream=stream, events=len(mine), busy_ns=busy))
    return sorted(out, key=lambda row: (-row.busy_ns, row.stream))


def _same_stream_overlaps(events: DeviceEvents) -> int:
    """How many events start before the one before them on their stream ends (programmatic launch)."""
    order = np.lexsort((events.start, events.stream))
    same = events.stream[order][1:] == events.stream[order][:-1]
    overlaps = same & (events.start[order][1:] < events.end[order][:-1])
    return int(np.count_nonzero(overlaps))


def _steps(trace: Trace, account: DeviceAccount, origin_ns: int) -> list[Step]:
    events = account.events
    first = _first_starts(events, len(trace.steps))
    present = [step for step, start in enumerate(first) if start is not None]
    present.sort(key=lambda step: first[step] or 0)
    rows = rows_by_value(events.step)
    out = []
    for position, step in enumerate(present):
        own = rows[step]
        begin = first[step] or 0
        last = int(events.end[own].max())
        following = first[present[position + 1]] if position + 1 < len(present) else None
        out.append(_step(trace, account, step, own, (begin, last if following is None else following), origin_ns))
    return marked_outliers(out)


def _first_starts(events: DeviceEvents, steps: int) -> list[int | None]:
    """The start of each step's first event.

    Copies of the next batch, and fetching parameters ahead, run on streams of their own while the work of earlier steps
    still waits: a step whose first event does so begins on the stream that computes longest, if it has events there.
    """
    first: list[int | None] = [None] * steps
    main: list[int | None] = [None] * steps
    last = np.full(steps, np.iinfo(np.int64).min)
    attributed = events.step >= 0
    own = attributed & (events.stream == _main_stream(events))
    for out, chosen in ((first, attributed), (main, own)):
        rows = np.flatnonzero(chosen)
        found, at = np.unique(events.step[rows], return_index=True)
        for step, index in zip(found.tolist(), at.tolist(), strict=True):
            out[step] = int(events.start[rows[index]])
    np.maximum.at(last, events.step[own], events.end[own])
    ended = np.maximum.accumulate(last)
    ahead = [at > 0 and begin is not None and begin < ended[at - 1] for at, begin in enumerate(first)]
    # No step before the first one shows whether it began ahead: it did if others do.
    ahead[:1] = [any(ahead)] if steps else []
    return [one if runs and one is not None else begin for begin, one, runs in zip(first, main, ahead, strict=True)]


def _main_stream(events: DeviceEvents) -> int:
    """The stream that computes longest."""
    computes = np.flatnonzero(events.class_of == COMPUTE)
    streams, place = np.unique(events.stream[computes], return_inverse=True)
    if not len(streams):
        return int(events.stream[0])
    lasts = np.bincount(place, weights=(events.end - events.start)[computes])
    return int(streams[lasts.argmax()])


def _step(
    trace: Trace, account: DeviceAccount, step: int, own: NDArray[np.intp], window: tuple[int, int], origin_ns: int
) -> Step:
    events = account.events
    timeline = intervals.class_timeline(*events.of(own))
    begin, end = window
    return Step(
        name=trace.steps["name"][step],
        gpu_events=len(own),
        start_ns=begin - origin_ns,
        window_ns=end - begin,
        device_span_ns=int(events.end[own].max() - events.start[own].min()),
        host_ns=int(trace.steps["duration_ns"][step]),
        busy_ns=timeline.total(intervals.ANY),
        compute_ns=timeline.total(intervals.COMPUTE_RUNS),
        communication_ns=timeline.total(intervals.COMMUNICATION_RUNS),
        memory_ns=timeline.total(intervals.MEMORY_RUNS),
        ledger=ledger_within(account, begin, end),
    )


def marked_outliers(steps: list[Step]) -> list[Step]:
    """Steps with those that are much longer, or communicate much longer, than the median marked.

    The last one's window ends with its own last event and not with the next step: of it, and of the others for it, the
    span of its own events is compared.
    """
    if len(steps) < _LEAST_STEPS_FOR_OUTLIERS:
        return steps
    window, span, busy = (
        OUTLIER_RATIO * float(np.median([getattr(step, field) for step in chosen]))
        for field, chosen in (("window_ns", steps[:-1]), ("device_span_ns", steps), ("busy_ns", steps))
    )
    stands_out = [step.window_ns > window or step.busy_ns > busy for step in steps[:-1]]
    stands_out.append(steps[-1].device_span_ns > span or steps[-1].busy_ns > busy)
    return [msgspec.structs.replace(step, outlier=outlier) for step, outlier in zip(steps, stands_out, strict=True)]
