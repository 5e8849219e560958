"""The account of a job without an accelerator: the device is the CPU of the training thread.

Time in operators (on the training thread or the autograd engine's) is compute, collectives (on any
thread) communicate, and the rest of the training thread's time goes to the causes of the ledger.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis import intervals
from whystall.analysis.device import marked_outliers
from whystall.analysis.host_states import HostEvents, HostState, host_events, overlay, state_at
from whystall.analysis.hosts import backward_threads, training_thread
from whystall.analysis.intervals import Cumulative, Spans, Timeline
from whystall.analysis.kernel_classes import COMMUNICATION, COMPUTE
from whystall.analysis.results import ClassCounts, Device, LaunchLinks, Ledger, ShortKernels, Step
from whystall.trace.collectives import ENQUEUES
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.trace.model import Trace

_IDLE_PART: Final = {
    HostState.INPUT: "idle_input",
    HostState.SYNC: "idle_sync",
    HostState.PYTHON: "idle_python",
    HostState.NONE: "idle_python",
    HostState.LAUNCH: "idle_launch",
    HostState.ALLOCATOR: "idle_allocator",
    HostState.GC: "idle_gc",
}
_SHORT_NS: Final = 10_000
_ASYNCHRONOUS: Final = re.compile(r"^_c10d_functional::|^Torch-Compiled|^CompiledFxGraph|^## Call|^CompiledFunction")


class CpuAccount:
    """CPU activity at each instant of the training thread's recording."""

    def __init__(self, host: HostEvents, training: int, computing: set[int], enqueuing: NDArray[np.intp]) -> None:
        """``enqueuing`` are the events that hand a collective to a library's thread."""
        own = host.timeline(training)
        self.begin, self.end = int(own.times[0]), int(own.times[-1])
        spans: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]] = []
        combined = own
        lines = {
            int(thread): own if thread == training else host.timeline(int(thread)) for thread in np.unique(host.thread)
        }
        elsewhere = [
            _spans(line, HostState.COMMUNICATION, 0) for thread, line in lines.items() if thread not in computing
        ]
        for thread, timeline in lines.items():
            if thread in computing:
                waits = _waits(host, thread, enqueuing[host.thread[enqueuing] == thread])
                spans.append(_computing(timeline, waits, elsewhere))
            spans.append(_spans(timeline, HostState.COMMUNICATION, COMMUNICATION))
            if thread in computing and thread != training:
                combined = overlay(combined, timeline)
        start, end, class_of = (np.concatenate([span[part] for span in spans]) for part in range(3))
        self.work = intervals.class_timeline(start, end, class_of)
        self._parts = self._partition(combined)

    def _partition(self, combined: Timeline) -> dict[str, Cumulative]:
        """Ledger part -> time up to any instant; the parts never overlap."""
        times = intervals.merged_times(self.work.times, combined.times, np.array([self.begin, self.end]))
        work = state_at(self.work, times[:-1])
        state = state_at(combined, times[:-1])
        parts = {"compute": (work & 1) != 0, "communication": (work & 3) == 2}
        for name in sorted(set(_IDLE_PART.values())):
            members = [int(member) for member, part in _IDLE_PART.items() if part == name]
            parts[name] = (work == 0) & np.isin(state, members)
        decided = np.any(np.stack(list(parts.values())), axis=0)
        parts["idle_unknown"] = ~decided
        spans = np.diff(times)
        return {
            name: Cumulative(times, flags, np.append(0, np.cumsum(np.where(flags, spans, 0))))
            for name, flags in parts.items()
        }

    def ledgers(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> list[Ledger]:
        """The ledger of each window."""
        columns = [part.within(begin, end).tolist() for part in self._parts.values()]
        return [Ledger(**dict(zip(self._parts, row, strict=True))) for row in zip(*columns, strict=True)]

    def spans(self) -> tuple[tuple[str, ...], Spans]:
        """The ledger's parts, and the stretches of time that each has."""
        names = tuple(self._parts)
        times = self._parts[names[0]].times
        part = np.argmax(np.stack([self._parts[name].flags for name in names]), axis=0)
        return names, Spans.joined([Spans(times[:-1], times[1:], part.astype(np.uint8))])

    def work_within(
        self, counted: NDArray[np.bool_], begin: NDArray[np.int64], end: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The time of each window in which a counted class works."""
        return self.work.cumulative(counted).within(begin, end)


def _waits(host: HostEvents, thread: int, enqueuing: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """From the end of each event that enqueues a collective to the next event of its thread, by begin."""
    begin = np.sort(host.end[enqueuing])
    starts = host.start[host.events_of(thread)]
    after = np.searchsorted(starts, begin, side="left")
    known = after < len(starts)
    return begin[known], starts[after[known]]


def _computing(
    timeline: Timeline,
    waits: tuple[NDArray[np.int64], NDArray[np.int64]],
    talks: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """The stretches in which a thread computes.

    A function of autograd that sums over ranks and waits for it is an operator, and computes nothing meanwhile.
    """
    if not len(waits[0]) or not talks:
        return _spans(timeline, HostState.DISPATCH, COMPUTE)
    begun, ended = (np.sort(np.concatenate([one[part] for one in talks])) for part in range(2))
    times = intervals.merged_times(timeline.times, *waits, begun, ended)
    at = times[:-1]
    wait = np.searchsorted(waits[0], at, side="right") - 1
    waiting = (wait >= 0) & (at < waits[1][np.maximum(wait, 0)])
    waiting &= np.searchsorted(begun, at, side="right") > np.searchsorted(ended, at, side="right")
    chosen = np.flatnonzero((state_at(timeline, at) == HostState.DISPATCH) & ~waiting)
    return at[chosen], times[1:][chosen], np.full(len(chosen), COMPUTE, np.uint8)


def _spans(
    timeline: Timeline, state: HostState, class_of: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    chosen = np.flatnonzero(timeline.states == state)
    return timeline.times[chosen], timeline.times[chosen + 1], np.full(len(chosen), class_of, np.uint8)


def cpu_account(trace: Trace) -> CpuAccount | None:
    """The account of the CPU's activity; ``None`` when no thread recorded anything."""
    training = training_thread(trace)
    if training is None:
        return None
    names, parent = trace.operators["name"], rows_of(trace.operators["parent"])
    enqueuing = np.flatnonzero(matching(names, lambda name: name.startswith(ENQUEUES)) & (parent >= 0))
    # Code that torch compiled computes on without an event, and marks its waits.
    tells_all = ~matching(names, lambda name: bool(_ASYNCHRONOUS.match(name)))
    enqueuing = enqueuing[tells_all[parent[enqueuing]]]
    host = host_events(trace, collectives=True)
    return CpuAccount(host, training, {training, *backward_threads(trace)}, enqueuing)


def cpu_device(trace: Trace, account: CpuAccount, rank: int, origin_ns: int) -> Device:
    """The CPU's account over its steps, or over the training thread's recording."""
    begin, end = _window(trace, account)
    window = (np.array([begin]), np.array([end]))
    compute, communication, overlap = (
        int(account.work_within(counted, *window)[0])
        for counted in (
            intervals.COMPUTE_RUNS,
            intervals.COMMUNICATION_RUNS,
            intervals.COMPUTE_AND_COMMUNICATION,
        )
    )
    busy = compute + communication - overlap
    return Device(
        rank=rank,
        device=0,
        kind="cpu",
        name=None,
        gpu_events=0,
        start_ns=begin - origin_ns,
        window_ns=end - begin,
        busy_ns=busy,
        idle_ns=end - begin - busy,
        compute_ns=compute,
        communication_ns=communication,
        memory_ns=0,
        compute_communication_overlap_ns=overlap,
        exposed_communication_ns=communication - overlap,
        exposed_memory_ns=0,
        kernel_sum_ns=0,
        counts=ClassCounts(compute=0, communication=0, memory=0),
        ledger=account.ledgers(*window)[0],
        idle_cause=None,
        idle_unknown=[],
        streams=[],
        launch=LaunchLinks(linked=0, unlinked=0),
        short_kernels=ShortKernels(threshold_ns=_SHORT_NS, count=0, total_ns=0),
        distinct_kernel_names=0,
        same_stream_overlaps=0,
        steps=_steps(trace, account, origin_ns),
        steps_from=trace.steps_from,
    )


def _window(trace: Trace, account: CpuAccount) -> tuple[int, int]:
    """From the first step's start to the last one's end; without steps the training thread's whole recording."""
    if trace.steps.is_empty():
        return account.begin, account.end
    ends = trace.steps["ts_ns"] + trace.steps["duration_ns"]
    begin = min(max(int(trace.steps["ts_ns"][0]), account.begin), account.end)
    return begin, max(min(int(ends.max()), account.end), begin)  # type: ignore[arg-type]


def _steps(trace: Trace, account: CpuAccount, origin_ns: int) -> list[Step]:
    """Steps as windows of the training thread: from one's start to the next one's, the last to its own end."""
    if trace.steps.is_empty():
        return []
    start = trace.steps["ts_ns"].to_numpy()
    duration = trace.steps["duration_ns"].to_numpy()
    begin = np.clip(start, account.begin, account.end)
    end = np.clip(np.append(start[1:], start[-1] + duration[-1]), begin, account.end)
    busy, compute, communication = (
        account.work_within(counted, begin, end).tolist()
        for counted in (intervals.ANY, intervals.COMPUTE_RUNS, intervals.COMMUNICATION_RUNS)
    )
    window = (end - begin).tolist()
    ledgers = account.ledgers(begin, end)
    steps = [
        Step(
            name=name,
            gpu_events=0,
            start_ns=int(begin[index]) - origin_ns,
            window_ns=window[index],
            device_span_ns=window[index],
            host_ns=int(duration[index]),
            busy_ns=busy[index],
            compute_ns=compute[index],
            communication_ns=communication[index],
            memory_ns=0,
            ledger=ledgers[index],
        )
        for index, name in enumerate(trace.steps["name"].to_list())
    ]
    return marked_outliers(steps)
