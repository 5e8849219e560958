"""A table made to fit a line: the columns that matter least go, and names are cut rather than broken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from rich.cells import cell_len

from whystall.report.names import ELLIPSIS, clean, cut_apart
from whystall.report.tables import Column, Kind, Table

GAP = 2
# Readable width of a cell that may be cut; the first column names the row and gets more.
_LEAST: Mapping[Kind, int] = MappingProxyType({"name": 24, "text": 16, "prose": 24})
_MOST_LINES = 3


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table with the widths of its columns, and the headings of those for which there was no room."""

    table: Table
    widths: tuple[int, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Strip:
    """One column with its cells: its least room, and the room in which no cell is cut."""

    index: int
    column: Column
    texts: tuple[str, ...]
    least: int
    wanted: int

    @property
    def wraps(self) -> bool:
        """Whether it is made of sentences that matter too much to be cut."""
        return self.column.kind == "prose" and (self.index == 0 or self.column.priority == 1)


def fitted(table: Table, width: int) -> Fitted:
    """The table in lines of ``width``: one line for each row, more only where its message is a sentence."""
    every = list(_strips(table, width, whole_labels=True))
    kept = _chosen(every, width)
    if len(kept) < len(every):  # headings in two lines make room
        kept = _chosen(list(_strips(table, width, whole_labels=False)), width)
    widths = _spread(kept, width - GAP * (len(kept) - 1))
    texts = [_cut(strip, room) for strip, room in zip(kept, widths, strict=True)]
    rows = tuple(
        tuple(replace(row[strip.index], text=column[number]) for strip, column in zip(kept, texts, strict=True))
        for number, row in enumerate(table.rows)
    )
    shown = {strip.index for strip in kept}
    return Fitted(
        table=replace(table, columns=tuple(strip.column for strip in kept), rows=rows),
        widths=tuple(widths),
        left_out=tuple(strip.column.label for strip in every if strip.index not in shown),
    )


def _strips(table: Table, width: int, *, whole_labels: bool) -> Iterator[_Strip]:
    for index, column in enumerate(table.columns):
        texts = tuple(row[index].text for row in table.rows)
        widest = max(map(cell_len, texts), default=0)
        label = cell_len(column.label) if whole_labels else _in_two_lines(column.label)
        least = min(widest, _readable(column, index, width))
        yield _Strip(index, column, texts, max(least, label), max(widest, label))


def _in_two_lines(label: str) -> int:
    """The least room in which a heading takes at most two lines."""
    words = label.split()
    breaks = ((" ".join(words[:place]), " ".join(words[place:])) for place in range(1, max(len(words), 2)))
    return min(max(map(cell_len, lines)) for lines in breaks)


def _readable(column: Column, index: int, width: int) -> int:
    """The room in which a cell of the column is legible; a number is not cut."""
    least = _LEAST.get(column.kind, width)
    return max(least, min(width // 3, 40)) if index == 0 and column.kind == "name" else least


def _chosen(strips: Sequence[_Strip], width: int) -> list[_Strip]:
    """The first column, and of the others by importance each for which there is room left."""
    first, *others = strips
    room = width - first.least
    kept = [first]
    for strip in sorted(others, key=lambda strip: strip.column.priority):
        if strip.least + GAP <= room:
            kept.append(strip)
            room -= strip.least + GAP
    return sorted(kept, key=lambda strip: strip.index)


def _spread(strips: Sequence[_Strip], room: int) -> list[int]:
    """Width of each column: its need, and an even part of the rest up to its use."""
    widths = [min(strip.least, room) for strip in strips]
    while True:
        short = [place for place, strip in enumerate(strips) if widths[place] < strip.wanted]
        part = (room - sum(widths)) // max(len(short), 1)
        if not short or part < 1:
            break
        for place in short:
            widths[place] = min(widths[place] + part, strips[place].wanted)
    if short:  # the rest is less than a column's width for each
        widths[short[0]] += max(room - sum(widths), 0)
    return widths


def _cut(strip: _Strip, room: int) -> list[str]:
    if strip.wanted <= room:
        return list(strip.texts)
    if strip.wraps:
        return [clean(text, _MOST_LINES * room) for text in strip.texts]
    if strip.column.kind == "prose":
        return [text if cell_len(text) <= room else text[: room - 1].rstrip() + ELLIPSIS for text in strip.texts]
    return cut_apart(strip.texts, room)
