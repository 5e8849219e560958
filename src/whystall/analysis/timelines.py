"""A drawable timeline of one representative step: streams and the threads that launch on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.device import DeviceEvents
from whystall.analysis.kernel_classes import CLASSES
from whystall.analysis.results import Device, Lane, Step, Timeline
from whystall.trace.model import Trace

_HOST_CLASSES: Final = ("operator", "runtime", "annotation", "python")
_CLASS_OF_HOST: Final = {name: number for number, name in enumerate(_HOST_CLASSES, len(CLASSES))}
_MOST_EVENTS: Final = 3000
_MOST_LANES: Final = 12
_RESOLUTION: Final = 1500
_MANY: Final = "several short events"

_Events = tuple[NDArray[np.int64], NDArray[np.int64], list[str], NDArray[np.int64]]


def representative_step(steps: list[Step]) -> Step | None:
    """The step whose window is the (lower) median."""
    ordered = sorted(steps, key=lambda step: (step.window_ns, step.start_ns))
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def device_timeline(trace: Trace, result: Device, device: DeviceEvents | None, origin_ns: int) -> Timeline | None:
    """The events of the representative step (or of the window's start when there are no steps).

    ``device`` are those of the device; ``None``: of a job on the CPU.
    """
    step = representative_step(result.steps)
    begin = (step.start_ns if step else result.start_ns) + origin_ns
    window = step.window_ns if step else result.window_ns
    if window <= 0:
        return None
    names: dict[str, int] = {_MANY: 0}
    streams = [row.stream for row in result.streams]
    return Timeline(
        rank=result.rank,
        device=result.device,
        step=step.name if step else None,
        start_ns=begin - origin_ns,
        window_ns=window,
        lanes=lanes_within(trace, device, streams, (begin, window), names),
        names=list(names),
        classes=[*CLASSES, *_HOST_CLASSES],
    )


def lanes_within(
    trace: Trace, device: DeviceEvents | None, streams: Sequence[int], span: tuple[int, int], names: dict[str, int]
) -> list[Lane]:
    """Activity of a device and its launching threads within a span (begin, length), a lane each.

    ``names`` are those of events so far, each with its number; more are added.
    """
    lanes = []
    if device is not None:
        lanes += [_stream_lane(trace, device, stream, span, names) for stream in streams[:_MOST_LANES]]
    threads = _host_threads(trace, device)[: _MOST_LANES // 2]
    lanes += [_thread_lane(trace, thread, span, names) for thread in threads]
    return [lane for lane in lanes if lane.events]


def _host_threads(trace: Trace, device: DeviceEvents | None) -> list[int]:
    threads = trace.operators["thread"].to_numpy() if device is None else device.launches.thread[device.launches.known]
    if not len(threads):
        return []
    counts = np.bincount(threads)
    return [int(thread) for thread in np.argsort(-counts, kind="stable") if counts[thread] > 0]


def _stream_lane(trace: Trace, events: DeviceEvents, stream: int, span: tuple[int, int], names: dict[str, int]) -> Lane:
    rows = np.flatnonzero((events.stream == stream) & (events.end > span[0]) & (events.start < sum(span)))
    texts = trace.device_events["name"][events.row[rows]].cast(pl.String).to_list()
    found: _Events = (events.start[rows], events.end[rows], texts, events.class_of[rows].astype(np.int64))
    return _lane(f"stream {stream}", "stream", found, span, names)


def _thread_lane(trace: Trace, thread: int, span: tuple[int, int], names: dict[str, int]) -> Lane:
    """The thread's annotations, outermost operators and runtime calls; a page draws what nests below."""
    mine = pl.col("thread") == thread
    parts = [
        (trace.annotations.filter(mine), _CLASS_OF_HOST["annotation"]),
        (trace.operators.filter(mine & pl.col("parent").is_null()), _CLASS_OF_HOST["operator"]),
        (trace.runtime_calls.filter(mine), _CLASS_OF_HOST["runtime"]),
    ]
    starts, ends, texts, classes = [], [], [], []
    for table, number in parts:
        start = table["ts_ns"].to_numpy()
        end = start + table["duration_ns"].to_numpy()
        seen = np.flatnonzero((end > span[0]) & (start < sum(span)))
        starts.append(start[seen])
        ends.append(end[seen])
        texts += table["name"][seen].cast(pl.String).to_list()
        classes.append(np.full(len(seen), number, np.int64))
    order = np.lexsort((-np.concatenate(ends), np.concatenate(starts)))
    found: _Events = (
        np.concatenate(starts)[order],
        np.concatenate(ends)[order],
        [texts[i] for i in order],
        np.concatenate(classes)[order],
    )
    _, tid, name = trace.threads.row(thread)
    label = name if name and name.startswith("thread") else f"thread {tid}" + (f" ({name})" if name else "")
    return _lane(label, "thread", found, span, names)


def _lane(label: str, kind: str, events: _Events, span: tuple[int, int], names: dict[str, int]) -> Lane:
    """The lane's events, clipped to the window; runs of short events are merged if there are too many."""
    start, end, texts, classes = events
    begin, last = span[0], sum(span)
    clipped = [
        (max(int(start[i]), begin), min(int(end[i]), last), texts[i], int(classes[i])) for i in range(len(start))
    ]
    drawn, merged = clipped, 0
    if len(clipped) > _MOST_EVENTS // 4:
        drawn, merged = _coalesced(clipped, max(span[1] // _RESOLUTION, 1))
    if len(drawn) > _MOST_EVENTS // 2:
        merged += len(drawn) - _MOST_EVENTS // 2
        shortest_kept = sorted((high - low for low, high, _, _ in drawn), reverse=True)[_MOST_EVENTS // 2 - 1]
        drawn = [event for event in drawn if event[1] - event[0] >= shortest_kept][: _MOST_EVENTS // 2]
    rows = [(low - begin, high - low, names.setdefault(text, len(names)), number) for low, high, text, number in drawn]
    return Lane(label=label, kind=kind, events=rows, coalesced=merged)  # type: ignore[arg-type]


def _coalesced(events: list[tuple[int, int, str, int]], resolution: int) -> tuple[list[tuple[int, int, str, int]], int]:
    """Events with runs of neighbours that are shorter than ``resolution`` joined, and how many were joined."""
    out: list[tuple[int, int, str, int]] = []
    joined = 0
    for low, high, text, number in events:
        if out and high - low < resolution:
            before = out[-1]
            close = (
                low - before[1] < resolution and before[3] == number and max(high, before[1]) - before[0] < resolution
            )
            if close:
                out[-1] = (before[0], max(before[1], high), _MANY, number)
                joined += 1
                continue
        out.append((low, high, text, number))
    return out, joined
