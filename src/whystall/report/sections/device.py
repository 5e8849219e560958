"""Activity of a device: its steps, streams, kernels and longest events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from whystall.analysis.results import Device, Kernel, KernelFamily, Operator, Step, Timeline
from whystall.analysis.work_results import DeviceEfficiency
from whystall.report import format as fmt
from whystall.report import tables
from whystall.report.ranks import RankReport, device_name
from whystall.report.tables import Cell, Column, Limits, Table
from whystall.report.vocabulary import UNKNOWN_FAMILY


def devices(devices: Sequence[Device], limits: Limits, *, total: int | None = None) -> Table:
    """Devices side by side, of ``total`` that there are if they are not all."""
    columns = (
        Column("Rank", "text"), Column("Device", "name", priority=1), Column("Window", priority=1),
        Column("Compute", priority=1), Column("Communication", priority=2),
        Column("Exposed comm.", note="Communication that compute does not hide", priority=2), Column("Idle"),
        Column("Idle share", priority=1), Column("Steps", priority=4), Column("Events", priority=4),
    )  # fmt: skip
    rows = (
        (
            tables.identifier(device.rank),
            tables.name(device_name(device), limits),
            tables.duration(device.window_ns),
            tables.duration(device.compute_ns),
            tables.duration(device.communication_ns),
            tables.duration(device.exposed_communication_ns),
            tables.duration(device.idle_ns),
            tables.share(fmt.ratio(device.idle_ns, device.window_ns)),
            tables.count(len(device.steps)),
            tables.count(device.gpu_events) if device.kind != "cpu" else Cell(""),
        )
        for device in devices[: limits.rows]
    )
    caption = "Every device over its whole recording."
    return tables.table("devices", "Devices", caption, columns, rows, total=total or len(devices))


def steps(device: Device, limits: Limits) -> Table:
    """A device's steps in order, outliers flagged and never cut."""
    columns = (
        Column("Step", "name"),
        Column("Window", note="From the step's first device event to that of the next step", priority=1),
        Column("Compute", note="Union of the compute that the step launched", priority=1),
        Column("Communication", priority=2),
        Column("Memory"),
        Column("Idle", note="Nothing ran on the device, in the step's window", priority=2),
        Column("Idle share", priority=1),
        Column("Host", note="The step's span on the host"),
        Column("Events", priority=4),
        Column("Flag", "mark", priority=2),
    )
    shown = _steps_to_show(device.steps, limits.rows)
    rows = (
        (
            tables.name(step.name, limits),
            tables.duration(step.window_ns),
            tables.duration(step.compute_ns),
            tables.duration(step.communication_ns),
            tables.duration(step.memory_ns),
            tables.duration(step.ledger.idle_ns),
            tables.share(fmt.ratio(step.ledger.idle_ns, step.window_ns)),
            tables.duration(step.host_ns),
            tables.count(step.gpu_events) if device.kind != "cpu" else Cell(""),
            tables.mark("outlier" if step.outlier else ""),
        )
        for step in shown
    )
    caption = "Each step as the device saw it: what the step launched, not what ran meanwhile."
    return tables.table("steps", "Steps", caption, columns, rows, total=len(device.steps))


def _steps_to_show(steps: Sequence[Step], rows: int) -> list[Step]:
    """At most ``rows`` steps in order: outliers first, then the earliest."""
    ranked = sorted(range(len(steps)), key=lambda i: (not steps[i].outlier, i))[:rows]
    return [steps[index] for index in sorted(ranked)]


def facts(device: Device, limits: Limits) -> Table:
    """A device's totals over its whole recording, one measure per row."""
    columns = (
        Column("Measure", "prose"),
        Column("Time", priority=1),
        Column("Share of window", priority=1),
        Column("Events", priority=1),
        Column("Meaning", "prose", priority=2),
    )
    rows = (
        (
            tables.words(label, limits),
            tables.duration(ns) if ns is not None else Cell(""),
            tables.share(fmt.ratio(ns, device.window_ns)) if ns is not None else Cell(""),
            tables.count(events) if events is not None else Cell(""),
            tables.words(meaning, limits),
        )
        for label, ns, events, meaning in _measures(device)
    )
    return tables.table("facts", "Device", "The device over its whole recording.", columns, rows, sortable=False)


_Measure = tuple[str, int | None, int | None, str]


def _measures(device: Device) -> Iterator[_Measure]:
    yield from _cpu_measures(device) if device.kind == "cpu" else _accelerator_measures(device)


def _cpu_measures(device: Device) -> Iterator[_Measure]:
    yield "Window", device.window_ns, None, "The training thread from its first event to its last"
    yield "Compute", device.compute_ns, None, "In operators"
    if device.communication_ns:
        yield "Communication", device.communication_ns, None, "In collectives"
    yield "Outside operators", device.idle_ns, None, "Python, input, and the ledger's other idle parts"


def _accelerator_measures(device: Device) -> Iterator[_Measure]:
    counts, gaps = device.counts, device.idle_cause.gaps if device.idle_cause else None
    yield "Window", device.window_ns, device.gpu_events, "From the first device event's start to the last one's end"
    yield "Busy", device.busy_ns, None, "Something runs: the union of all events"
    yield "Compute", device.compute_ns, counts.compute, "The union of all compute"
    yield "Communication", device.communication_ns, counts.communication, "The union of all communication"
    yield "Hidden communication", device.compute_communication_overlap_ns, None, "Communication while compute runs"
    yield "Exposed communication", device.exposed_communication_ns, None, "Communication while nothing else runs"
    yield "Memory", device.memory_ns, counts.memory, "The union of all copies and memory sets"
    yield "Exposed memory", device.exposed_memory_ns, None, "Copies and memory sets while nothing else runs"
    yield "Idle", device.idle_ns, gaps, "Nothing runs; the events are gaps"
    if device.idle_cause:
        cause = device.idle_cause
        yield "Idle: launched in the gap", cause.host_late_ns, None, "Gaps in which the next event was launched"
        yield "Idle: launched before", cause.queued_but_waiting_ns, None, "Gaps whose next event was launched before"
        yield "Idle: launch unknown", cause.launch_unknown_ns, None, "Gaps whose next event has no launch call"
    short = device.short_kernels
    yield "Short events", short.total_ns, short.count, f"Events shorter than {fmt.duration(short.threshold_ns)}"
    yield "Launch in the file", None, device.launch.linked, "Events whose launch call was recorded"
    yield "Launch not in the file", None, device.launch.unlinked, "Events kept and counted without a launch call"
    if device.same_stream_overlaps:
        yield (
            "Overlaps in one stream",
            None,
            device.same_stream_overlaps,
            "Events that start before their predecessor ends",
        )


def streams(device: Device, limits: Limits) -> Table:
    """A device's queues."""
    columns = (Column("Stream", "text"), Column("Events"), Column("Busy"), Column("Share of window"))
    shown = tables.largest(device.streams, limits, lambda stream: (stream.busy_ns, f"{stream.stream:09}"))
    rows = (
        (
            tables.identifier(stream.stream),
            tables.count(stream.events),
            tables.duration(stream.busy_ns),
            tables.share(fmt.ratio(stream.busy_ns, device.window_ns)),
        )
        for stream in shown
    )
    return tables.table("streams", "Streams", "Each queue of the device.", columns, rows, total=len(device.streams))


WORK: Final = (
    Column("FLOPs", note="Products, convolutions and attention, less what a causal mask saves", priority=4),
    Column("FLOP/s", priority=2),
    Column("B/s", note="Bytes that must be read and written, over the time"),
    Column("Roofline", note=f"Least time that the device allows over the time taken; {fmt.OVER}", priority=2),
)


def work_cells(row: Kernel | KernelFamily | Operator) -> tuple[Cell, ...]:
    """Work of a row, under the headings of `WORK`."""
    return (
        tables.rate(row.flops_causal, "FLOP"),
        tables.rate(row.flops_per_s, "FLOP/s"),
        tables.rate(row.bytes_per_s, "B/s"),
        tables.roofline(row.roofline),
    )


def families(rank: RankReport, limits: Limits) -> Table:
    """Device time by family of kernels, those that no rule knows included."""
    columns = (
        Column("Family", "name"), Column("Class", "text", priority=4), Column("Count"), Column("Total", priority=1),
        Column("Share", priority=1), *WORK,
        Column("Work known", note="Share of the time whose operator has a cost"),
        Column("Tensor cores", note="Share of the time of kernels whose names say that they used them", priority=4),
    )  # fmt: skip
    shown = tables.largest(rank.families, limits, lambda row: (row.total_ns, row.family or ""))
    rows = (
        (
            tables.name(row.family or UNKNOWN_FAMILY, limits),
            Cell(row.class_, row.class_, part=row.class_),
            tables.count(row.count),
            tables.duration(row.total_ns),
            tables.share(row.share),
            *work_cells(row),
            tables.share(row.covered_share),
            tables.share(row.tensor_core_share),
        )
        for row in shown
    )
    caption = "Device time by family. Unknown kernels are listed with their share."
    return tables.table("families", "Kernel families", caption, columns, rows, total=len(rank.families))


def kernels(rank: RankReport, limits: Limits) -> Table:
    """The kernels that take most device time."""
    columns = (
        Column("Name", "name"), Column("Class", "text", priority=5), Column("Family", "text", priority=4),
        Column("Count"), Column("Total", priority=1), Column("Mean", priority=4), Column("Max", priority=5),
        Column("Share", note="Relative to the sum of all device events", priority=1), *WORK,
    )  # fmt: skip
    shown = tables.largest(rank.kernels, limits, lambda row: (row.total_ns, row.name))
    rows = (
        (
            tables.name(row.name, limits),
            Cell(row.class_, row.class_, part=row.class_),
            tables.name(row.family or UNKNOWN_FAMILY, limits),
            tables.count(row.count),
            tables.duration(row.total_ns),
            tables.duration(row.mean_ns),
            tables.duration(row.max_ns),
            tables.share(row.share),
            *work_cells(row),
        )
        for row in shown
    )
    caption = "Device events by name, longest total first."
    return tables.table("kernels", "Kernels", caption, columns, rows, total=len(rank.kernels))


def named(names: Sequence[str], index: int) -> str | None:
    """The name that an event refers to; none where a damaged report refers to nothing."""
    return names[index] if 0 <= index < len(names) else None


def longest_events(timeline: Timeline | None, limits: Limits) -> Table:
    """A timeline in words: its longest events."""
    columns = (
        Column("Name", "name"),
        Column("Duration"),
        Column("Start", note="From the start of the step"),
        Column("Class", "text"),
        Column("Lane", "text"),
    )
    names, classes = ([], []) if timeline is None else (timeline.names, timeline.classes)
    lanes = [] if timeline is None else timeline.lanes
    events = [(event, lane.label) for lane in lanes for event in lane.events]
    shown = tables.largest(events, limits, lambda row: (row[0][1], f"{row[0][0]:020}"))
    rows = (
        (
            tables.name(named(names, event[2]), limits),
            tables.duration(event[1]),
            tables.duration(event[0]),
            tables.name(named(classes, event[3]), limits),
            tables.name(lane, limits),
        )
        for event, lane in shown
    )
    caption = "The longest events of the step drawn above."
    return tables.table("events", "Longest events", caption, columns, rows, total=len(events))


def uncovered(rating: DeviceEfficiency | None, device: Device, limits: Limits) -> Table:
    """Operators whose work is in no number, with the reason."""
    columns = (
        Column("No work known of", "name"), Column("Events"), Column("Time", priority=1),
        Column("Share of device time", priority=1),
        Column("Because", "prose", priority=2),
    )  # fmt: skip
    found = [] if rating is None else rating.uncovered
    rows = (
        (
            tables.name(row.operator or "(no operator)", limits),
            tables.count(row.events),
            tables.duration(row.device_ns),
            tables.share(fmt.ratio(row.device_ns, device.kernel_sum_ns)),
            tables.words(row.because, limits),
        )
        for row in found[: limits.rows]
    )
    caption = "Device time whose FLOPs and bytes are in no number here."
    return tables.table("uncovered", "Not covered", caption, columns, rows, total=len(found))
