"""Writes what a simulated profiler saw, as torch 2.x's Kineto writes it."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.accuracy.simulator.device import Activity
from benchmarks.accuracy.simulator.host import PROCESS, Rank, Span, SyncSpan
from benchmarks.accuracy.simulator.job import Lost

_BASE_NS = 1_759_000_000_000_000_000
_EPOCH_NS = 1_500_000_000_000
MAIN_THREAD = PROCESS


@dataclass(frozen=True, slots=True)
class Recording:
    """What the profiler was asked for and what it knows of the job."""

    world_size: int = 1
    groups: tuple[dict[str, Any], ...] = ()
    sync_events: bool = False
    hidden: frozenset[str] = frozenset()
    """Names of host events that are not in the trace."""
    lost: Lost = field(default_factory=Lost)
    bare: bool = False
    """Calls of the runtime are all that is there of the host."""


def write(rank: Rank, path: Path, recording: Recording) -> None:
    """Write a rank's trace, compressed where the name ends in ``.gz``; the same bytes for the same run."""
    data = json.dumps(document(rank, recording)).encode()
    path.write_bytes(gzip.compress(data, compresslevel=3, mtime=0) if path.suffix == ".gz" else data)


def document(rank: Rank, recording: Recording) -> dict[str, Any]:
    """The whole trace as JSON values."""
    world_size, groups, hidden = recording.world_size, recording.groups, recording.hidden
    moved = _EPOCH_NS + rank.clock_offset_ns
    spans, activities = _kept(rank, recording.lost)
    shown = [span for span in spans if span.name not in hidden and (not recording.bare or _is_call(span))]
    events = [_host(span, moved, index) for index, span in enumerate(shown)]
    launched = {activity.correlation for activity in activities}
    calls = [span for span in shown if "correlation" in span.arguments]
    events += [_flow("s" if span.arguments["correlation"] in launched else "f", span, moved) for span in calls]
    events += _device(rank, activities, moved)
    events += [] if recording.bare else _step_on_device(rank, activities, moved)
    if recording.sync_events:
        events += [_sync(span, moved, rank.device_index) for span in rank.syncs]
    events += [] if recording.bare else _forward_backward(rank, moved)
    events.sort(key=lambda event: event["ts"])
    events = [*_names(rank, moved), *events, *_ends(rank, moved)]
    found: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [rank.machine.gpu.properties(index) for index in range(min(world_size, 8))],
        "cupti_version": 24,
        "cuda_runtime_version": 12060,
        "with_flops": 0,
        "record_shapes": 1,
        "cuda_driver_version": 12080,
        "profile_memory": 0,
        "with_stack": int(any(span.category == "python_function" for span in rank.spans)),
        "trace_id": f"{rank.seed:032X}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": _BASE_NS,
    }
    if world_size > 1:
        found["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank.rank,
            "world_size": world_size,
            "pg_count": len(groups),
            "pg_config": list(groups),
            "nccl_version": "2.27.5",
        }
    return {**found, "traceEvents": events, "traceName": f"rank{rank.rank}.trace.json"}


def _time(nanoseconds: int) -> float | int:
    return nanoseconds / 1_000


def _host(span: Span, moved: int, index: int) -> dict[str, Any]:
    arguments = dict(span.arguments)
    if "correlation" not in span.arguments:
        arguments["Ev Idx"] = index
    return {
        "ph": "X",
        "cat": span.category,
        "name": span.name,
        "pid": PROCESS,
        "tid": span.thread,
        "ts": _time(span.start_ns + moved),
        "dur": _time(span.end_ns - span.start_ns),
        "args": arguments,
    }


def _flow(phase: str, span: Span, moved: int) -> dict[str, Any]:
    made = {
        "ph": phase,
        "id": span.arguments["correlation"],
        "pid": PROCESS,
        "tid": span.thread,
        "ts": _time(span.start_ns + moved),
        "cat": "ac2g",
        "name": "ac2g",
    }
    return made | ({"bp": "e"} if phase == "f" else {})


def _is_call(span: Span) -> bool:
    return span.category in {"cuda_runtime", "cuda_driver"}


def _kept(rank: Rank, lost: Lost) -> tuple[list[Span], list[Activity]]:
    """What is in the file of what was seen."""
    spans, activities = rank.spans, rank.device.activities
    if lost.rank not in {None, rank.rank}:
        return spans, activities
    length = max([span.end_ns for span in spans] + [each.end_ns for each in activities], default=1)

    def is_kept(start_ns: int, stretch: tuple[float, float], share: float, kind: str, number: int) -> bool:
        drawn = zlib.crc32(f"{rank.seed}/{rank.rank}/lost/{kind}/{number}".encode()) / 0xFFFFFFFF
        return not stretch[0] <= start_ns / length < stretch[1] and drawn >= share

    return (
        [
            span
            for number, span in enumerate(spans)
            if "correlation" not in span.arguments
            or is_kept(span.start_ns, lost.calls, lost.some_calls, "call", number)
        ],
        [
            each
            for number, each in enumerate(activities)
            if is_kept(each.start_ns, lost.device, lost.some_device, "device", number)
            and not (lost.graphs and "graph node id" in each.arguments)
        ],
    )


def write_together(ranks: Sequence[Rank], path: Path, recording: Recording, *, labelled: bool) -> None:
    """Write all ranks into one file, as tools do that put traces together: the first file's head, and all events.

    ``labelled`` puts the rank in front of each process, as SGLang does; else only processes of the host differ, and
    what numbers events (correlations, flows, External ids) is each rank's own.
    """
    documents = [document(rank, recording) for rank in ranks]
    events = []
    for number, found in enumerate(documents):
        for event in found["traceEvents"]:
            pid = event["pid"]
            if labelled:
                pid = f"[TP{number:02d}] {pid}"
            elif pid == PROCESS:
                pid = PROCESS + 111 * number
            events.append({**event, "pid": pid})
    head = {**documents[0], "traceEvents": events}
    if labelled:
        head.pop("distributedInfo", None)
    path.write_bytes(gzip.compress(json.dumps(head).encode(), compresslevel=3, mtime=0))


def _device(rank: Rank, activities: Sequence[Activity], moved: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for activity in activities:
        place = {
            "device": rank.device_index,
            "context": 1,
            "stream": activity.stream,
            "correlation": activity.correlation,
        }
        start = _time(activity.start_ns + moved)
        made = {
            "ph": "X",
            "cat": activity.category,
            "name": activity.name,
            "pid": rank.device_index,
            "tid": activity.stream,
        }
        duration = _time(activity.end_ns - activity.start_ns)
        events.append({**made, "ts": start, "dur": duration, "args": {**activity.arguments, **place}})
        flow = {"ph": "f", "id": activity.correlation, "pid": rank.device_index, "tid": activity.stream, "ts": start}
        events.append({**flow, "cat": "ac2g", "name": "ac2g", "bp": "e"})
    return events


def _step_on_device(rank: Rank, activities: Sequence[Activity], moved: int) -> list[dict[str, Any]]:
    """The annotations of steps as Kineto repeats them on the streams that they reached."""
    if not any("ProfilerStep#" in span.name for span in rank.spans):
        return []
    spans: dict[tuple[int, int], list[int]] = {}
    for activity in activities:
        span = spans.setdefault((activity.step, activity.stream), [activity.start_ns, activity.end_ns])
        span[0], span[1] = min(span[0], activity.start_ns), max(span[1], activity.end_ns)
    return [
        {
            "ph": "X",
            "cat": "gpu_user_annotation",
            "name": f"ProfilerStep#{step}",
            "pid": rank.device_index,
            "tid": stream,
            "ts": _time(start_ns + moved),
            "dur": _time(end_ns - start_ns),
            "args": {"External id": step + 1},
        }
        for (step, stream), (start_ns, end_ns) in spans.items()
    ]


def _sync(span: SyncSpan, moved: int, device: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cuda_sync",
        "name": span.name,
        "pid": device,
        "tid": span.stream,
        "ts": _time(span.start_ns + moved),
        "dur": _time(span.end_ns - span.start_ns),
        "args": {
            **span.arguments,
            "stream": span.stream,
            "correlation": span.correlation,
            "device": device,
            "context": 1,
        },
    }


def _forward_backward(rank: Rank, moved: int) -> list[dict[str, Any]]:
    events = []
    for number, (forward, backward) in enumerate(rank.forward_links, start=1):
        for phase, span in (("s", forward), ("f", backward)):
            made: dict[str, Any] = {
                "ph": phase,
                "id": number,
                "pid": PROCESS,
                "tid": span.thread,
                "ts": _time(span.start_ns + moved),
            }
            events.append({**made, "cat": "fwdbwd", "name": "fwdbwd", **({"bp": "e"} if phase == "f" else {})})
    return events


def _names(rank: Rank, moved: int) -> list[dict[str, Any]]:
    start = _time(moved)
    events: list[dict[str, Any]] = []
    for pid, label, order in ((PROCESS, "CPU", PROCESS), (rank.device_index, f"GPU {rank.device_index}", 5_000_000)):
        base: dict[str, Any] = {"ph": "M", "ts": start, "pid": pid, "tid": 0}
        events.append({"name": "process_name", **base, "args": {"name": "python3"}})
        events.append({"name": "process_labels", **base, "args": {"labels": label}})
        events.append({"name": "process_sort_index", **base, "args": {"sort_index": order}})
    for stream in sorted({activity.stream for activity in rank.device.activities}):
        base = {"ph": "M", "ts": start, "pid": rank.device_index, "tid": stream}
        events.append({"name": "thread_name", **base, "args": {"name": f"stream {stream} "}})
    for thread in sorted({span.thread for span in rank.spans}):
        base = {"ph": "M", "ts": start, "pid": PROCESS, "tid": thread}
        events.append({"name": "thread_name", **base, "args": {"name": f"thread {thread} (python3)"}})
    return events


def _ends(rank: Rank, moved: int) -> list[dict[str, Any]]:
    last_ns = max([span.end_ns for span in rank.spans] + [each.end_ns for each in rank.device.activities], default=0)
    whole = {"ph": "X", "cat": "Trace", "ts": _time(moved - 50_000), "dur": _time(last_ns + 90_000)}
    place = {"pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0}}
    mark = {"ph": "i", "s": "g", "ts": _time(moved - 50_000)}
    return [
        {**whole, **place},
        {"name": "Iteration Start: PyTorch Profiler", **mark, "pid": "Traces", "tid": "Trace PyTorch Profiler"},
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": _time(last_ns + moved + 60_000)},
    ]
