"""The whole job: its parts from the launch to the exit, and the lines before the first step and after the last one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import structs

from whystall.analysis.price import Price
from whystall.analysis.whole_job import JobPart, JobPartName, WholeJob, part_of
from whystall.report import tables
from whystall.report.format import money
from whystall.report.names import line_of_code
from whystall.report.schema import Report
from whystall.report.tables import Cell, Column, Limits, Table
from whystall.run_folder.job_times import JobPlace

_MEANING: Final[dict[JobPartName, str]] = {
    "launch": "From the launcher to the process",
    "interpreter": "Python starts",
    "before torch": "Code and imports before torch is imported",
    "import torch": "torch itself, with what it imports",
    "imports": "Imports after torch, also hidden ones in a constructor",
    "commands": "Other programs run, and the job waits",
    "network": "Connections are opened and read",
    "locks": "Lock files are waited for",
    "group": "Process groups are formed",
    "ranks": "Waits for other ranks",
    "random init": "Parameters get random values",
    "weights": "Weights are read into the model",
    "move": "The model moves to its device",
    "tokens": "Text becomes tokens",
    "data": "Libraries read and change data",
    "workers": "Loaders' workers start and end, until their first batch",
    "compile": "torch.compile and other compilers",
    "evaluation": "The model is evaluated",
    "saves": "Checkpoints are written",
    "logging": "Progress is logged",
    "set-up": "The job's other code before the first step",
    "first step": "The model runs until its first step ends",
    "steps": "All further steps",
    "recording": "whystall opens windows and writes traces",
    "tail": "The job's other code after the last step",
    "exit": "Python ends",
}
_LATER: Final = {"start": "", "steps": ", between steps", "end": ", after the last step"}
_OF_ITSELF: Final = frozenset({"steps", "recording", "tail", "exit"})
"""Parts whose phase is clear."""
_LEAST: Final = 0.01
"""Share of its table's time that a line needs to be listed."""


def parts(report: Report, limits: Limits) -> Table:
    """The ledger of the whole job, part by part."""
    columns = (
        Column("Part", "text", priority=1), Column("Time", priority=1), Column("Share", priority=1),
        *([Column("Cost", priority=1)] if report.price is not None and report.price.cents is not None else []),
        Column("Meaning", "prose", priority=2),
    )  # fmt: skip
    job = report.job
    found = job.parts if job is not None else []
    largest = sorted(found, key=lambda one: -one.ns)[: limits.rows]
    rows = (
        (
            Cell(_name(one), one.part),
            tables.duration(one.ns),
            tables.share(one.ns / max(job.wall_ns, 1) if job is not None else None),
            *_cost(report.price, number),
            Cell(_MEANING[one.part], one.part),
        )
        for number, one in enumerate(found)
        if one in largest
    )
    return tables.table("job", "The whole job", _caption(job), columns, rows, total=len(found))


def _cost(price: Price | None, number: int) -> list[Cell]:
    if price is None or price.rate is None:
        return []
    cents = price.parts[number].cents or 0
    return [Cell(money(cents, price.rate.currency), cents)]


def _name(part: JobPart) -> str:
    later = "" if part.part in _OF_ITSELF else _LATER[part.phase]
    return f"{part.part.capitalize()}{later}"


def _caption(job: WholeJob | None) -> str:
    said = "The main thread's time from the launch of the command to its exit; the parts add up to it."
    if job is not None and job.ahead_ns:
        said += f" This is rank {job.rank}, which was the last to be ready for its first step."
    return said


def lines(report: Report, limits: Limits) -> Table:
    """The lines with most of the time outside of steps."""
    columns = (
        Column("When", "text", priority=1), Column("Line", "name", priority=1), Column("Code", "prose", priority=1),
        Column("Time", priority=1), Column("Work", "text", priority=2), Column("In", "name", priority=3),
    )  # fmt: skip
    found = list(_places(report.job)) if report.job is not None else []
    shown = tables.largest(found, limits, lambda one: (one[1].ns, f"{one[1].file}:{one[1].line:09}"))
    rows = (
        (
            Cell(when, when),
            tables.name(line_of_code(one.file, one.line), limits),
            tables.words(one.text or one.function, limits),
            tables.duration(one.ns),
            tables.words(part_of(one) or "", limits),
            tables.name(one.leaf, limits),
        )
        for when, one in shown
    )
    caption = (
        "Where the main thread was found until the first step ended, in occasional work between steps, and after the "
        "last one, by time."
    )
    return tables.table("outside", "Outside of steps", caption, columns, rows, total=len(found))


def _places(job: WholeJob) -> Iterator[tuple[str, JobPlace]]:
    """Lines with a hundredth of the whole job, each kind of work there once."""
    for when, places in (("before", job.before_steps), ("within", job.within_steps), ("after", job.after_steps)):
        by_work: dict[tuple[str, int, str | None], list[JobPlace]] = {}
        for place in places:
            by_work.setdefault((place.file, place.line, part_of(place)), []).append(place)
        whole = (structs.replace(same[0], ns=sum(one.ns for one in same)) for same in by_work.values())
        yield from ((when, one) for one in whole if one.ns >= _LEAST * job.wall_ns)
