"""The whole of a watched run, from its samples: step times, and where the slow steps lost theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from whystall.analysis.run_results import RunSummary
from whystall.report import format as fmt
from whystall.report import tables
from whystall.report.names import line_of_code
from whystall.report.schema import Report
from whystall.report.tables import Cell, Column, Limits, Table
from whystall.vocabulary.step_parts import OTHER, TIMED


def steps(report: Report, limits: Limits) -> Table:
    """Step times of each rank: their distribution and composition."""
    columns = (
        Column("Rank", "text"), Column("Steps"), Column("Median", priority=1), Column("p90", priority=4),
        Column("p99", priority=2), Column("Longest", priority=1),
        Column("Trend", note="Change of the median step from the first half of the run to the second", priority=4),
        Column("Input", note="Waiting for the data loader", priority=2), Column("Forward"), Column("Backward"),
        Column("Optimizer"),
        Column("Saving", note="In torch.save", priority=4), Column("GC", note="Python's garbage collector", priority=4),
        Column("Other", note="None of these"), Column("On CPU", note="The stepping thread ran, and was not waiting"),
    )  # fmt: skip
    shown = sorted(report.run, key=lambda row: row.rank)[: limits.rows]
    rows = (
        (
            tables.identifier(row.rank),
            tables.count(row.all_steps),
            tables.duration(row.median_ns),
            tables.duration(row.p90_ns),
            tables.duration(row.p99_ns),
            tables.duration(row.max_ns),
            tables.share(row.trend),
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


def changed_paces(runs: Sequence[RunSummary]) -> Iterator[str]:
    """A sentence on each rank whose pace changed for good, with the steps that the report covers."""
    for run in runs:
        if run.changed is not None:
            whose = f"rank {run.rank}'s steps" if len(runs) > 1 else "steps"
            yield (
                f"the pace changed while the job ran: {whose} {run.changed.first:,} to {run.changed.last:,}, which the "
                f"report covers, take {fmt.duration(run.median_ns)} in the median, others took "
                f"{fmt.duration(run.changed.other_ns)}"
            )


_BARS: Final = "▁▂▃▄▅▆▇█"
_MOST_BARS: Final = 60
_FEWEST_BARS: Final = 10


def pace(report: Report, limits: Limits) -> Table:
    """Per rank its step times from the first to the last, as bars."""
    columns = (
        Column("Rank", "text"), Column("From the first step to the last", "prose", priority=1),
        Column("Highest bar", priority=2),
    )  # fmt: skip
    found = [row for row in sorted(report.run, key=lambda row: row.rank) if len(row.drawn_ns) >= _FEWEST_BARS]
    rows = (
        (
            tables.identifier(row.rank),
            Cell(_bars(row.drawn_ns), row.rank),
            tables.duration(max(row.drawn_ns)),
        )
        for row in found[: limits.rows]
    )
    caption = "The time of each step that no profiler slowed; where bars stand for several, of the longest of them."
    return tables.table("pace", "Step times", caption, columns, rows, total=len(found))


def _bars(durations_ns: Sequence[int]) -> str:
    """Bars from zero: their height is proportional to the length.

    >>> _bars([10, 20, 80, 40])
    '▁▂█▄'
    """
    count = min(len(durations_ns), _MOST_BARS)
    edges = [at * len(durations_ns) // count for at in range(count + 1)]
    longest = [max(durations_ns[begin:end]) for begin, end in pairwise(edges)]
    top = max(*longest, 1)
    return "".join(_BARS[max(-(-one * len(_BARS) // top) - 1, 0)] for one in longest)


def places(report: Report, limits: Limits) -> Table:
    """The lines at which the training thread was found."""
    columns = (
        Column("Rank", "text"), Column("Line", "name", priority=1), Column("Code", "prose", priority=2),
        Column("Share", note="Looks that found the thread there", priority=1), Column("Part", "text", priority=4),
    )  # fmt: skip
    found = [(row.rank, line) for row in report.run for line in row.places]
    shown = tables.largest(found, limits, lambda pair: (pair[1].share, f"{pair[1].file}:{pair[1].line:09}"))
    rows = (
        (
            tables.identifier(rank),
            tables.name(line_of_code(line.file, line.line), limits),
            tables.words(line.text or line.function, limits),
            tables.share(line.share),
            tables.words(line.part, limits),
        )
        for rank, line in shown
    )
    caption = "Where the training thread was found when it was looked at, some twenty times a second."
    return tables.table("places", "Lines", caption, columns, rows, total=len(found))


def lines(report: Report, limits: Limits) -> Table:
    """The same where no cause was named: then the lines are all that there is to go by."""
    named = any(finding.severity != "info" for finding in report.findings)
    return replace(places(report, Limits(0, limits.name)) if named else places(report, limits), id="lines", omitted=0)


def experiments(report: Report, limits: Limits) -> Table:
    """Results of further runs with one change each."""
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
    """The slowest steps, each with the parts that took longer than usual."""
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


def meetings(report: Report, limits: Limits) -> Table:
    """Waits between ranks in collectives."""
    columns = (
        Column("Rank", "text"),
        Column("Collectives", note="Those with all ranks recorded", priority=2),
        Column("Came last", note="The share of the collectives in which all others waited for it", priority=1),
        Column("Waited", note="For ranks that came later, in all", priority=1),
        Column("Later than all", note="Than the last of the others, in all those that it came last to", priority=1),
        Column("Clock", note="Ahead of the first rank's (behind: below zero)", priority=4),
        Column("Known to", note="One standard deviation", priority=5),
        Column("Drift", note="Parts in a million by which the clock is faster", priority=5),
    )
    shown = tables.largest(report.ranks, limits, lambda row: (row.alone_ns, f"{row.rank:07}"))
    rows = (
        (
            tables.identifier(row.rank),
            tables.count(row.meetings),
            tables.share(fmt.ratio(row.last, row.meetings)),
            tables.duration(row.wait_ns),
            tables.duration(row.alone_ns),
            tables.duration(-row.clock_offset_ns),
            tables.duration(None if row.clock_uncertainty_ns is None else round(row.clock_uncertainty_ns)),
            Cell(f"{-row.clock_drift * 1e6:.1f}", -row.clock_drift) if row.clock_drift else Cell(fmt.UNKNOWN, None),
        )
        for row in shown
    )
    caption = (
        "Collectives begin when the last rank has come. The one that delays them most by itself stands first. "
        "Where several ranks come last at the same time, none of them counts."
    )
    return tables.table("meetings", "Waiting between ranks", caption, columns, rows, total=len(report.ranks))
