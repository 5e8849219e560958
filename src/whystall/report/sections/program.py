"""Activity of the program: operators, modules, phases, and the host that ran them."""

from __future__ import annotations

from dataclasses import replace

from whystall.analysis.results import HostThread
from whystall.report import format as fmt
from whystall.report import tables
from whystall.report.ranks import RankReport
from whystall.report.sections.device import WORK, work_cells
from whystall.report.tables import Cell, Column, Limits, Table


def operators(rank: RankReport, limits: Limits) -> Table:
    """The operators that take most device time, or host time where there is no device."""
    columns = (
        Column("Operator", "name"),
        Column("Calls"),
        Column("Device", note="Device time of all that the operator launched, inner operators included", priority=2),
        Column("Device self", note="Device time of what it launched itself", priority=1),
        Column("Host"),
        Column("Host self", note="Host time outside inner operators", priority=1),
        *WORK,
    )
    shown = tables.largest(
        rank.operators, limits, lambda row: (row.device_self_ns * 10**6 + row.host_self_ns, row.name)
    )
    rows = (
        (
            tables.name(row.name, limits),
            tables.count(row.calls),
            tables.duration(row.device_ns),
            tables.duration(row.device_self_ns),
            tables.duration(row.host_ns),
            tables.duration(row.host_self_ns),
            *work_cells(row),
        )
        for row in shown
    )
    caption = "Operators by the device time of what they launched themselves."
    made = tables.table("operators", "Operators", caption, columns, rows, total=len(rank.operators))
    return _on_the_host(made) if rank.on_cpu else made


def _on_the_host(table: Table) -> Table:
    """The table without device times, which on a CPU are the host's."""
    labels = (column.label for column in table.columns if column.label not in {"Device", "Device self"})
    return replace(table.only(*labels), caption="Operators by their own time, inner operators left out.")


def modules(rank: RankReport, limits: Limits) -> Table:
    """The modules that take most time, children included."""
    columns = (
        Column("Module", "name"), Column("Type", "text"), Column("Calls", priority=4), Column("Forward", priority=1),
        Column("Backward", priority=1),
        Column("Forward self"), Column("Backward self"), Column("Host", priority=2), Column("Parameters", priority=5),
        Column("Forward FLOPs", priority=5), Column("FLOP/s forward", priority=2),
        Column("Backward FLOPs", priority=5), Column("FLOP/s backward", priority=2),
        Column("B/s forward", priority=4), Column("B/s backward", priority=4),
        Column(
            "Roofline",
            note=f"Least time that the device allows over the time taken, forward and backward; {fmt.OVER}",
            priority=2,
        ),
        Column("Work known", note="Share of the time whose operator has a cost", priority=4),
    )  # fmt: skip
    shown = tables.largest(
        rank.modules, limits, lambda row: ((row.forward_ns + row.backward_ns) * 10**6 + row.host_ns, row.path)
    )
    rows = (
        (
            tables.name(row.path or "(root)", limits),
            tables.name(row.class_, limits),
            tables.count(row.calls),
            tables.duration(row.forward_ns),
            tables.duration(row.backward_ns),
            tables.duration(row.forward_self_ns),
            tables.duration(row.backward_self_ns),
            tables.duration(row.host_ns),
            tables.count(row.parameters),
            tables.rate(row.forward_flops, "FLOP"),
            tables.rate(row.forward_flops_per_s, "FLOP/s"),
            tables.rate(row.backward_flops, "FLOP"),
            tables.rate(row.backward_flops_per_s, "FLOP/s"),
            tables.rate(row.forward_bytes_per_s, "B/s"),
            tables.rate(row.backward_bytes_per_s, "B/s"),
            tables.roofline(row.roofline),
            tables.share(row.covered_share),
        )
        for row in shown
    )
    caption = "Time of each module, its children included; self leaves them out."
    return tables.table("modules", "Modules", caption, columns, rows, total=len(rank.modules))


def phases(rank: RankReport, limits: Limits) -> Table:
    """Forward, backward, optimizer."""
    accelerated = any(device.kind != "cpu" for device in rank.devices)
    columns = (
        Column("Phase", "text"),
        Column("Device"),
        Column("Device time" if accelerated else "In operators"),
        Column("Share"),
        Column("Events"),
        Column("Host time"),
    )
    whole = sum(row.device_ns for row in rank.phases)
    several = len({row.device for row in rank.phases}) > 1
    rows = (
        (
            Cell(row.phase.capitalize(), row.phase),
            tables.identifier(row.device) if several else Cell(""),
            tables.duration(row.device_ns),
            tables.share(fmt.ratio(row.device_ns, whole)),
            tables.count(row.device_events),
            tables.duration(row.host_ns),
        )
        for row in rank.phases[: limits.rows]
    )
    caption = "Device and host time of each phase." if accelerated else "Time of each phase."
    return tables.table("phases", "Phases", caption, columns, rows, total=len(rank.phases))


def threads(rank: RankReport, limits: Limits) -> Table:
    """The process's threads and their observed activities."""
    columns = (
        Column("Thread", "name"), Column("Role", "text"), Column("Operators", note="Self time", priority=1),
        Column("Runtime calls", priority=1), Column("Python", note="Self time", priority=1),
        Column("Annotations", note="Self time", priority=2),
        Column("Launches"),
    )  # fmt: skip
    shown = tables.largest(rank.threads, limits, lambda row: (_seen_ns(row), f"{row.pid}/{row.tid}"))
    rows = (
        (
            tables.name(row.name or f"thread {row.tid}", limits),
            Cell(row.role, row.role),
            tables.duration(row.operator_self_ns),
            tables.duration(row.runtime_ns),
            tables.duration(row.python_self_ns),
            tables.duration(row.annotation_self_ns),
            tables.count(row.launches),
        )
        for row in shown
    )
    caption = "Activity of each host thread, innermost event first."
    return tables.table("threads", "Host threads", caption, columns, rows, total=len(rank.threads))


def _seen_ns(row: HostThread) -> int:
    return row.operator_self_ns + row.runtime_ns + row.python_self_ns


def calls(rank: RankReport, limits: Limits) -> Table:
    """Runtime calls by name."""
    columns = (
        Column("Call", "name"), Column("Kind", "text", priority=5), Column("Count"), Column("Total", priority=1),
        Column("Mean", priority=2), Column("Max"),
    )  # fmt: skip
    shown = tables.largest(rank.calls, limits, lambda row: (row.total_ns, row.name))
    rows = (
        (
            tables.name(row.name, limits),
            Cell(row.kind, row.kind),
            tables.count(row.count),
            tables.duration(row.total_ns),
            tables.duration(row.mean_ns),
            tables.duration(row.max_ns),
        )
        for row in shown
    )
    caption = "Calls into the device's runtime, longest total first."
    return tables.table("calls", "Runtime calls", caption, columns, rows, total=len(rank.calls))
