"""Kernels in a row that could be one, and kernels that stand for several operators already."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from whystall.analysis.work_results import FusedKernel, FusibleChain
from whystall.report import format as fmt
from whystall.report import tables
from whystall.report.ranks import RankReport
from whystall.report.tables import Cell, Column, Limits, Table

ARROW = " → "
ORIGINS: Mapping[str, str] = MappingProxyType(
    {
        "graph": "replayed graph: the caller is known, the operators are not",
        "compiled": "compiled kernel, named after its operators",
        "operator": "operator",
        "region": "compiled region, and no more",
        "module": "module, without an operator",
        "python": "Python function, without an operator",
        "none": "nothing: no launch in the file",
    }
)
_MOST_NAMES = 12


def fusible(rank: RankReport, limits: Limits) -> Table:
    """The chains that could be one kernel, longest total first."""
    columns = (
        Column("Chain", "name"), Column("Kernels", note="In one run of the chain"),
        Column("Runs"), Column("Total", priority=1), Column("Between", note="Time between its kernels", priority=2),
        Column("Bytes", priority=4),
        Column(
            "Bytes fused",
            note="Without intermediate tensors; a backward pass may need them, and then it is up to the other number",
            priority=4,
        ),
        Column("Time fused", note="At 85 % of the memory bandwidth too", priority=1),
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


def origins(rank: RankReport, limits: Limits) -> Table:
    """How much device time can be traced to operators; nothing to show where all of it can."""
    columns = (
        Column("Known of the launch", "prose"),
        Column("Events"),
        Column("Time", priority=1),
        Column("Share", priority=1),
    )
    shares = [share for found in rank.origins for share in found.shares]
    whole = sum(share.device_ns for share in shares)
    told = any(share.origin != "operator" for share in shares)
    rows = (
        (
            tables.words(ORIGINS.get(share.origin, share.origin), limits),
            tables.count(share.events),
            tables.duration(share.device_ns),
            tables.share(fmt.ratio(share.device_ns, whole)),
        )
        for share in shares[: limits.rows]
    )
    caption = "Where device time comes from, as far as it was recorded; every event is in one row."
    total = len(shares)
    return tables.table("origins", "Origins", caption, columns, rows if told else (), total=total if told else 0)


def fused(rank: RankReport, limits: Limits) -> Table:
    """Compiled kernels and graphs with the operators and modules they came from."""
    columns = (
        Column("Kernel or graph", "name"), Column("Kind", "text"), Column("Operators", "name", priority=2),
        Column("Modules", "name"),
        Column("Launched by", "name", priority=4), Column("Launches", priority=4), Column("Events", priority=4),
        Column("Time", priority=1), Column("Not known", "prose", priority=5),
    )  # fmt: skip
    found = [row for one in rank.origins for row in one.fused]
    shown = tables.largest(found, limits, lambda row: (row.device_ns, row.name))
    rows = (
        (
            tables.name(row.name, limits),
            Cell(row.category or row.origin, row.category or row.origin),
            tables.name(", ".join(row.operators) or None, limits),
            tables.name(", ".join(row.modules) or None, limits),
            tables.name(row.function, limits),
            tables.count(row.launches),
            tables.count(row.events),
            tables.duration(row.device_ns),
            _reason(row, limits),
        )
        for row in shown
    )
    caption = "Compiled kernels and replayed graphs, and what they came from."
    omitted = sum(one.fused_omitted for one in rank.origins)
    return tables.table("fused", "Compiled kernels", caption, columns, rows, total=len(found) + omitted)


def _reason(row: FusedKernel, limits: Limits) -> Cell:
    return Cell("") if row.unknown_because is None else tables.words(row.unknown_because, limits)
