"""Kernels in a row: those that could be one, and those that are too short."""

from __future__ import annotations

from whystall.analysis.results import FusibleChain
from whystall.report import format as fmt
from whystall.report import tables
from whystall.report.ranks import RankReport
from whystall.report.tables import Cell, Column, Limits, Table

ARROW = " → "
_MOST_NAMES = 12


def fusible(rank: RankReport, limits: Limits) -> Table:
    """The chains that could be one kernel, longest total first."""
    columns = (
        Column("Chain", "name"), Column("Kernels", note="In one run of the chain"),
        Column("Runs"), Column("Total"), Column("Between", note="Time between its kernels"), Column("Bytes"),
        Column("Bytes fused", note="Without intermediate tensors; a backward pass may need them, and then it is up to the other number"),
        Column("Time fused", note="At 85 % of the memory bandwidth, likewise"),
    )  # fmt: skip
    rows = [(chain, found.device) for found in rank.chains for chain in found.fusible]
    shown = tables.largest(rows, limits, lambda row: (row[0].total_ns, str(row[0].start_ns)))
    body = (
        (
            tables.name(_chain(chain), limits),
            tables.count(chain.kernels),
            tables.count(chain.count),
            tables.duration(chain.total_ns),
            tables.duration(chain.gap_ns),
            tables.size(chain.bytes),
            Cell(_span(fmt.size(chain.fused_bytes), fmt.size(chain.fused_bytes_keeping)), chain.fused_bytes),
            Cell(_span(fmt.duration(chain.fused_ns), fmt.duration(chain.fused_ns_keeping)), chain.fused_ns),
        )
        for chain, _ in shown
    )
    return tables.table("chains", "Fusible chains", _caption(rank), columns, body, total=len(rows))


def _chain(chain: FusibleChain) -> str:
    names = [name.removeprefix("aten::") for name in chain.operators[:_MOST_NAMES]]
    more = chain.calls - len(names)
    return ARROW.join(names) + (f"{ARROW}{more} more" if more > 0 else "")


def _span(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _caption(rank: RankReport) -> str:
    whole = sum(found.fusible_ns for found in rank.chains)
    told = f"Kernels that follow each other and could be one: {fmt.duration(whole)} of device time in all."
    short = [found.short for found in rank.chains if found.short.count]
    if short:
        kernels, gaps = sum(one.kernels for one in short), sum(one.gap_ns for one in short)
        told += (
            f" Whatever they do, {fmt.plural(kernels, 'event')} shorter than {fmt.duration(short[0].threshold_ns)} come"
            f" {short[0].at_least} and more in a row, with {fmt.duration(gaps)} between them."
        )
    return told
