"""The whole of a watched run, from its samples: step times, and where the slow steps lost theirs."""

from __future__ import annotations

from whystall.report import format as fmt
from whystall.report import tables
from whystall.report.schema import Report
from whystall.report.tables import Cell, Column, Limits, Table
from whystall.vocabulary.step_parts import OTHER, TIMED


def steps(report: Report, limits: Limits) -> Table:
    """Per rank the distribution of step times and what they were spent on."""
    columns = (
        Column("Rank", "text"), Column("Steps"), Column("Median", priority=1), Column("p90", priority=4),
        Column("p99", priority=2), Column("Longest", priority=1),
        Column("Trend", note="Change of the step time over 1,000 steps", priority=4),
        Column("Input", note="Waiting for the data loader", priority=2), Column("Forward"), Column("Backward"),
        Column("Optimizer"),
        Column("Saving", note="In torch.save", priority=4), Column("GC", note="Python's garbage collector", priority=4),
        Column("Other", note="None of these"), Column("On CPU", note="The stepping thread ran, and was not waiting"),
    )  # fmt: skip
    shown = sorted(report.run, key=lambda row: row.rank)[: limits.rows]
    rows = (
        (
            tables.identifier(row.rank),
            tables.count(row.steps),
            tables.duration(row.median_ns),
            tables.duration(row.p90_ns),
            tables.duration(row.p99_ns),
            tables.duration(row.max_ns),
            tables.share(row.trend_per_1000_steps),
            *(tables.share(row.shares.get(part)) for part in (*TIMED, OTHER)),
            tables.share(row.on_cpu_share),
        )
        for row in shown
    )
    caption = (
        "All steps of the run, from light samples on the host; "
        "the first ones and those under the profiler are left out."
    )
    return tables.table("run", "The whole run", caption, columns, rows, total=len(report.run))


def experiments(report: Report, limits: Limits) -> Table:
    """What further runs with one thing changed showed."""
    columns = (
        Column("Experiment", "text"), Column("Speed-up", priority=1), Column("Tells", "prose", priority=1),
        Column("Step", priority=1),
        Column("Without the change"),
        Column("Noise", note="By how much two runs without a change differed", priority=4),
        Column("Changed", "prose", priority=4),
    )  # fmt: skip
    rows = (
        (
            tables.words(row.name, limits),
            Cell(fmt.UNKNOWN if row.speedup is None else f"{row.speedup:.2f}x", row.speedup),
            tables.words(row.tells, limits),
            tables.duration(row.step_ns),
            tables.duration(row.base_step_ns),
            tables.share(row.noise),
            tables.words(row.change, limits),
        )
        for row in report.experiments[: limits.rows]
    )
    caption = "Further runs of the command for some steps, each with one thing changed."
    return tables.table("experiments", "Experiments", caption, columns, rows, total=len(report.experiments))


def slow(report: Report, limits: Limits) -> Table:
    """The slowest steps, each with what took longer than usual."""
    columns = (
        Column("Rank", "text"),
        Column("Step", "text", priority=1),
        Column("Duration", priority=1),
        Column("Over the median", priority=1),
        Column("Lost in", "prose", priority=1),
    )
    found = [(row.rank, step) for row in report.run for step in row.slow]
    shown = tables.largest(found, limits, lambda pair: (pair[1].excess_ns, str(pair[1].step)))
    rows = (
        (
            tables.identifier(rank),
            tables.identifier(step.step),
            tables.duration(step.duration_ns),
            tables.duration(step.excess_ns),
            tables.words(_lost_in(step.lost_ns), limits),
        )
        for rank, step in shown
    )
    caption = "Steps that took much longer than the median of the run."
    return tables.table("slow", "Slow steps", caption, columns, rows, total=len(found))


def _lost_in(lost_ns: dict[str, int]) -> str:
    ordered = sorted(lost_ns.items(), key=lambda item: -item[1])
    return ", ".join(f"{part} {tables.duration(time).text}" for part, time in ordered)
