"""Resources that a step waited for or filled: communication, input, memory."""

from __future__ import annotations

from whystall.analysis.results import Collective
from whystall.report import format as fmt
from whystall.report import tables
from whystall.report.ranks import RankReport
from whystall.report.schema import Report
from whystall.report.tables import Cell, Column, Limits, Table


def communication(rank: RankReport, limits: Limits) -> Table:
    """Collectives by kind, group and dtype."""
    columns = (
        Column("Collective", "name"),
        Column("Group", "text", priority=4),
        Column("Size", note="Ranks in the group"),
        Column("Dtype", "text", priority=4),
        Column("Count"),
        Column("Bytes"),
        Column("Total", priority=1),
        Column("Hidden", note="Ran while compute ran", priority=4),
        Column("Exposed", note="Not hidden behind compute", priority=1),
        Column("Hidden share", priority=2),
        Column("Waiting", note="Waiting for other ranks", priority=2),
        Column("Max", priority=4),
        Column("Bus bandwidth", priority=2),
        Column("Of the link", note="Traffic over the device's own link, relative to its peak", priority=3),
        Column("Latency", note="Fixed time per message, from messages of several sizes", priority=5),
        Column("Beyond it", note="Bus bandwidth after the fixed time is taken off", priority=5),
        Column("Small", note="Messages that take longer for their latency than for their bytes", priority=5),
    )
    shown = tables.largest(rank.communication, limits, lambda row: (row.total_ns, row.collective))
    rows = (
        (
            tables.name(row.collective, limits),
            tables.name(row.group, limits),
            tables.count(row.group_size),
            tables.name(row.dtype, limits),
            tables.count(row.count),
            tables.size(row.bytes),
            tables.duration(row.total_ns),
            tables.duration(row.overlap_ns),
            tables.duration(row.exposed_ns),
            tables.share(fmt.ratio(row.overlap_ns, row.total_ns)),
            tables.duration(row.wait_ns),
            tables.duration(row.max_ns),
            tables.rate(row.busbw, "B/s"),
            _of_link(row),
            tables.duration(None if row.latency_ns is None else round(row.latency_ns)),
            tables.rate(row.busbw_beyond_latency, "B/s"),
            tables.share(row.small_share),
        )
        for row in shown
    )
    caption = "Collectives by kind, group and dtype. Only exposed time delays the step."
    return tables.table("communication", "Communication", caption, columns, rows, total=len(rank.communication))


def _of_link(row: Collective) -> Cell:
    """The share of the link's peak, with a word if bus bandwidth alone would exceed it."""
    if row.link_note is None:
        return tables.share(row.share_of_peak)
    if row.share_of_peak is None:
        return Cell("more than it carries", None, row.link_note)
    return Cell(f"{fmt.share(row.share_of_peak)}, in the switch", row.share_of_peak, row.link_note)


def blocking(report: Report, limits: Limits) -> Table:
    """Time that collectives hold a step up."""
    columns = (
        Column("Parallel by", "text", priority=1),
        Column("Collective", "name", priority=1),
        Column("Size", note="Ranks in the group", priority=3),
        Column("Calls", note="Per step and rank", priority=3),
        Column("Transfer", note="Per step and rank; waiting for recorded ranks is left out", priority=2),
        Column("Blocks", note="Time a step would save if transfers took none", priority=1),
        Column("Share", note="Of the step", priority=2),
    )
    shown = report.blocking[: limits.rows]
    rows = (
        (
            tables.name(row.dimension or fmt.UNKNOWN, limits),
            tables.name(row.collective or "all of it", limits),
            tables.count(row.group_size),
            Cell(f"{row.calls_per_step:g}", row.calls_per_step),
            tables.duration(row.transfer_ns),
            tables.duration(row.blocking_ns),
            tables.share(fmt.ratio(row.blocking_ns, report.verdict.step_ns or 0)),
        )
        for row in shown
    )
    caption = (
        "By a replay in which transfers take no time: what is exposed need not block, and the other way about. "
        "Waiting for ranks that were not recorded counts as transfer."
    )
    return tables.table("blocking", "Cost of communication", caption, columns, rows, total=len(report.blocking))


def waits(rank: RankReport, limits: Limits) -> Table:
    """Waits for input."""
    columns = (
        Column("Name", "name"),
        Column("Count"),
        Column("Total", priority=1),
        Column("Max"),
        Column("Exposed", note="Meanwhile the device stood idle", priority=1),
    )
    shown = tables.largest(rank.input, limits, lambda row: (row.total_ns, row.name))
    rows = (
        (
            tables.name(row.name, limits),
            tables.count(row.count),
            tables.duration(row.total_ns),
            tables.duration(row.max_ns),
            tables.duration(row.exposed_ns),
        )
        for row in shown
    )
    caption = "Time the training thread spent fetching input."
    return tables.table("input", "Input", caption, columns, rows, total=len(rank.input))


def memory(rank: RankReport, limits: Limits) -> Table:
    """Peaks of each allocator."""
    columns = (
        Column("Allocator", "name"), Column("Peak allocated", priority=1), Column("Peak reserved", priority=2),
        Column("At start"), Column("At end"), Column("Events"),
    )  # fmt: skip
    rows = (
        (
            tables.name(f"{row.device_type} {row.device}" if row.device >= 0 else row.device_type, limits),
            tables.size(row.peak_allocated_bytes),
            tables.size(row.peak_reserved_bytes),
            tables.size(row.allocated_start_bytes),
            tables.size(row.allocated_end_bytes),
            tables.count(row.events),
        )
        for row in rank.memory[: limits.rows]
    )
    caption = "Peaks of each allocator over the recording."
    return tables.table("memory", "Memory", caption, columns, rows, total=len(rank.memory))


def supply(report: Report, limits: Limits) -> Table:
    """Supply of the loader and demand of the steps, in samples per second: one line."""
    columns = (
        Column("Rank", "text"),
        Column("Supplied per second", note="Samples that the loader makes", priority=1),
        Column("Taken without waits", note="Samples per second if no step waited for its input", priority=1),
        Column("Samples a step", priority=3),
        Column("Waited", note="Share of the steps' time", priority=2),
    )
    found = [] if report.supply is None else [report.supply]
    rows = (
        (
            tables.identifier(row.rank),
            Cell(f"{'at least ' if row.at_least else ''}{fmt.quantity(row.supply_per_s)}", row.supply_per_s),
            Cell(fmt.quantity(row.demand_per_s), row.demand_per_s),
            tables.count(row.samples_per_step),
            tables.share(row.waited_share),
        )
        for row in found[: limits.rows]
    )
    caption = (
        "Input in samples per second, over all steps of the run: what the loader supplies against what steps take."
    )
    return tables.table("supply", "Input: supply and demand", caption, columns, rows, total=len(found))
