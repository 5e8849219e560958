"""A section of the report: kernels so short that launching them costs more than running them."""

from __future__ import annotations

from whystall.report import tables
from whystall.report.ranks import RankReport
from whystall.report.sections.section import InTerminal, Section
from whystall.report.tables import Column, Limits, Table

SHORT_NS = 5_000


def tiny_kernels(rank: RankReport, limits: Limits) -> Table:
    columns = (Column("Kernel", "name"), Column("Count", priority=1), Column("Mean", priority=1), Column("Total"))
    short = [kernel for kernel in rank.kernels if kernel.mean_ns < SHORT_NS]
    shown = tables.largest(short, limits, lambda kernel: (kernel.count, kernel.name))
    rows = (
        (
            tables.name(kernel.name, limits),
            tables.count(kernel.count),
            tables.duration(kernel.mean_ns),
            tables.duration(kernel.total_ns),
        )
        for kernel in shown
    )
    caption = "Kernels of less than 5 µs on average, the most frequent first."
    return tables.table("tiny-kernels", "Tiny kernels", caption, columns, rows, total=len(short))


SECTION = Section(
    id="tiny-kernels",
    scope="rank",
    build=tiny_kernels,
    absent="no kernel is shorter than 5 µs",
    terminal=InTerminal(columns=("Kernel", "Count", "Mean"), rows=3),
)
