"""The shape of a table that every format draws: a cell's text, its sort value and its full name."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from whystall.report import format as fmt
from whystall.report.names import clean, shorten

Row = TypeVar("Row")
Kind = Literal["name", "text", "prose", "number", "mark"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a format shows: rows per table, characters per name, and per full name."""

    rows: int
    name: int
    full: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """Content of a cell; ``value`` is its sort key, ``full`` the whole of a shortened name."""

    text: str
    value: int | float | str | None = None
    full: str | None = None
    part: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and kind; ``note`` explains the heading.

    Where a line is too short for all columns, those of the highest ``priority`` go first, and of sentences only those
    of priority 1 are not cut.
    """

    label: str
    kind: Kind = "number"
    note: str = ""
    priority: int = 3


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; ``omitted`` is the number of rows left out."""

    id: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    omitted: int = 0
    sortable: bool = True

    def __bool__(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.rows)

    def head(self, rows: int) -> Table:
        """The table's first rows; the others join the omitted ones."""
        return replace(self, rows=self.rows[:rows], omitted=self.omitted + max(len(self.rows) - rows, 0))

    def only(self, *labels: str) -> Table:
        """The table with these columns only."""
        kept = [index for index, column in enumerate(self.columns) if column.label in labels]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[index] for index in kept), rows=rows)

    def known(self) -> Table:
        """The table without the columns that have no known cell."""
        labels = [
            column.label
            for index, column in enumerate(self.columns)
            if any(row[index].text not in {fmt.UNKNOWN, ""} for row in self.rows)
        ]
        return self.only(*labels)


def largest(rows: Sequence[Row], limits: Limits, key: Callable[[Row], tuple[int | float, str]]) -> list[Row]:
    """The rows that weigh most, heaviest first, ties by name."""

    def order(row: Row) -> tuple[int | float, str]:
        weight, name = key(row)
        return (-weight, name)

    return heapq.nsmallest(limits.rows, rows, key=order)


def table(
    id: str,  # noqa: A002 - it is the HTML id
    title: str,
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    *,
    total: int | None = None,
    sortable: bool = True,
) -> Table:
    """A table of these rows out of ``total``."""
    kept = tuple(tuple(row) for row in rows)
    omitted = 0 if total is None else max(total - len(kept), 0)
    return Table(id, title, caption, tuple(columns), kept, omitted, sortable).known()


def name(text: str | None, limits: Limits) -> Cell:
    """A name from the trace: short on the page, in full on demand."""
    if text is None:
        return Cell(fmt.UNKNOWN)
    short = shorten(text, limits.name) or "(no name)"
    full = clean(text, limits.full) if limits.full else None
    return Cell(short, short.lower(), full if full and full != short else None)


def words(text: str | None, limits: Limits) -> Cell:
    """A sentence or label that is not cut like a name."""
    return (
        Cell(fmt.UNKNOWN) if text is None else Cell(clean(text, max(limits.full, 3 * limits.name)), text[:40].lower())
    )


def duration(ns: int | None) -> Cell:
    """A span of time."""
    return Cell(fmt.duration(ns), ns)


def share(fraction: float | None) -> Cell:
    """A fraction."""
    return Cell(fmt.share(fraction), None if fraction is None else round(fraction, 6))


def roofline(fraction: float | None) -> Cell:
    """The share of what a device allows; more than all of it is no speed (see `OVER`)."""
    return Cell(fmt.roofline(fraction), None if fraction is None else round(fraction, 6))


def count(value: int | None) -> Cell:
    """A whole number."""
    return Cell(fmt.count(value), value)


def identifier(value: int) -> Cell:
    """A number that names something and is not to be read as an amount."""
    return Cell(str(value), value)


def size(n_bytes: int | None) -> Cell:
    """An amount of memory."""
    return Cell(fmt.size(n_bytes), n_bytes)


def rate(value: float | None, unit: str) -> Cell:
    """A rate in SI units."""
    return Cell(fmt.rate(value, unit), None if value is None else float(value))


def mark(text: str) -> Cell:
    """A word that flags the row, or nothing."""
    return Cell(text, text)
