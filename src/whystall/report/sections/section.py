"""A section of the report: a table, made from a part of the report, and how each format shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from whystall.report.tables import Limits, Table

Scope = Literal["job", "device", "rank", "capture"]
"""The source of a section: the `Report` (for ``job`` on top, for ``capture`` at the end), or for each device its
`DeviceReport` and for each rank its `RankReport`."""

SECTIONS_GROUP: Final = "whystall.sections"
"""The entry point for the sections of other packages: a `Section`, or several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InTerminal:
    """The table in a terminal: whole in the long report; some columns and ``rows`` rows of it in the short one."""

    columns: tuple[str, ...] = ()
    rows: int = 0
    """With none the short report leaves the section out: it is to fit on a screen."""
    fewest: int = 1
    """With fewer rows the section is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InMarkdown:
    """The table in a pull request's comment: some columns, folded away unless it matters."""

    columns: tuple[str, ...] = ()
    folded: bool = True
    fewest: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPage:
    """The table on the HTML page: under which chapter, and whether readers can filter it."""

    chapter: str | None = None
    """One of ``CHAPTERS``; ``None``: the section is a chapter of its own."""
    rows: int | None = None
    filter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InNotebook:
    """The table below the verdict in a notebook's cell."""

    rows: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table of the report. ``build`` makes it from the part that ``scope`` names; it is shown where it has rows."""

    id: str
    scope: Scope
    build: Callable[[Any, Limits], Table]
    absent: str | None = None
    """The reason for its absence, with the way to get it."""
    terminal: InTerminal | None = InTerminal()
    markdown: InMarkdown | None = InMarkdown()
    page: OnPage | None = OnPage()
    notebook: InNotebook | None = None

    @property
    def chapter(self) -> str:
        """The chapter of the page that it belongs to."""
        return (self.page.chapter if self.page else None) or self.id


def of_scope(sections: Iterable[Section], scope: Scope) -> Iterator[Section]:
    """The sections that are made from such a part of the report."""
    return (section for section in sections if section.scope == scope)
