"""Results of a verb as parts, laid out as text here and as a page elsewhere, so that nothing is written twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from whystall.report.format import UNKNOWN, plural
from whystall.report.names import clean
from whystall.report.tables import Cell, Column, Kind, Table

PAGE_WIDTH = 260
"""The room of a line on a page, where lines break by themselves."""


Row = Sequence[Cell | str]
"""The cells of a row; a text alone sorts as it is."""


@dataclass(frozen=True, slots=True)
class Heading:
    """Title and introduction of the parts below, for a page; ``text`` stands in its place in a terminal."""

    title: str
    lead: str = ""
    text: str = ""
    level: int = 2


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences under each other; where ``marked``, things to look out for."""

    lines: tuple[str, ...]
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Points:
    """Sentences as entries of a list; a terminal breaks them at its width where ``wrapped``."""

    lines: tuple[str, ...]
    wrapped: bool = True


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to copy, with a title above."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """A place that is beside the page, by an address of our own making; ``text`` stands for it in a terminal."""

    title: str
    address: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table with notes below it; its caption is a page's, and ``text_head`` a terminal's.

    A terminal shows ``text_rows`` of it, and ``text_more`` after the number of the others.
    """

    table: Table
    notes: tuple[str, ...] = ()
    text_head: str = ""
    text_rows: int | None = None
    text_more: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing by the macro of that name on a page, with its text for a terminal."""

    macro: str
    view: object
    text: str = ""


Part = str | Heading | Lines | Points | Code | Link | Grid | Drawing


@dataclass(frozen=True, slots=True)
class Document:
    """The parts of a verb's result; ``headline`` stands on top of a page, and is not repeated in it."""

    verb: str
    headline: str
    parts: tuple[Part, ...]

    def with_parts(self, more: Iterable[Part]) -> Document:
        """The same with further parts at its end."""
        return replace(self, parts=(*self.parts, *more))


def grid(
    caption: str,
    labels: Sequence[str | tuple[str, str]],
    rows: Iterable[Row],
    *,
    notes: Iterable[str] = (),
    first: Kind = "text",
) -> Grid:
    """A table with that caption; columns that hold a number are of numbers, the first else of kind ``first``.

    Columns without a known cell are left out. A label is a terminal's text, or that and a page's text.
    """
    cells = tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows)
    kinds = ("number" if _is_number(cells, place) else first if place == 0 else "text" for place in range(len(labels)))
    columns_ = tuple(
        Column(label, kind) if isinstance(label, str) else Column(label[0], kind, note=label[1])
        for label, kind in zip(labels, kinds, strict=True)
    )
    return Grid(Table("table", caption, caption, columns_, cells).known(), tuple(notes))


def _is_number(rows: Sequence[Sequence[Cell]], place: int) -> bool:
    return any(isinstance(row[place].value, int | float) for row in rows)


def as_text(document: Document, width: int) -> str:
    """The document for a terminal of ``width`` columns."""
    texts = (_text(part, width) for part in document.parts)
    return "\n\n".join(text for text in texts if text) + "\n"


def _text(part: Part, width: int) -> str:
    match part:
        case str():
            return part
        case Lines(lines):
            return "\n".join(lines)
        case Points(lines, wrapped):
            return "\n".join(wrapped_entry(line, width) if wrapped else f"- {clean(line, 4 * width)}" for line in lines)
        case Code(title, lines):
            return "\n".join([title, *(f"  {line}" for line in lines)])
        case Grid():
            return _grid(part)
        case Heading() | Link() | Drawing():
            return part.text


def _grid(part: Grid) -> str:
    table = part.table if part.text_rows is None else part.table.head(part.text_rows)
    lines = [[column.label for column in table.columns], *([cell.text for cell in row] for row in table.rows)]
    more = [f"and {plural(table.omitted, 'more line')}{part.text_more}"] if table.omitted else []
    head = [part.text_head] if part.text_head else []
    return "\n".join([*head, columns(lines), *more, *part.notes])


def wrapped_entry(text: str, width: int) -> str:
    """The sentence in lines of ``width``, as an entry of a list."""
    lines, line = [], "-"
    for word in clean(text, 8 * width).split(" "):
        if len(line) + 1 + len(word) > width and line.strip(" -"):
            lines.append(line)
            line = " "
        line += f" {word}"
    return "\n".join([*lines, line])


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first to the left and the others to the right; one without a known cell is left out."""
    known = [place for place in range(len(lines[0])) if any(line[place] != UNKNOWN for line in lines[1:])]
    widths = [max(len(line[place]) for line in lines) for place in known]
    rows = (
        "  ".join(
            line[place].ljust(width) if index == 0 else line[place].rjust(width)
            for index, (place, width) in enumerate(zip(known, widths, strict=True))
        ).rstrip()
        for line in lines
    )
    return "\n".join(rows)
