"""A verb's result as one self-contained page, in the style of the report's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whystall._version import __version__
from whystall.report.document import Document, Grid, Part
from whystall.report.names import clean
from whystall.report.shell import MAX_BYTES, fill
from whystall.report.tables import Cell, Table

_SCRIPTS = ("theme.js", "tables.js", "copying.js")
_ROWS = (500, 100, 40)
_LONGEST_CELL = 400


def as_page(document: Document) -> str:
    """The page of a document. Beyond 1 MB tables are cut, then the last parts are left out; a line says it."""
    parts = [part for part in document.parts if part != document.headline]
    page = ""
    for rows in _ROWS:
        page = _page(document, parts, rows, left_out=0)
        if len(page.encode()) <= MAX_BYTES:
            return page
    kept = len(parts)
    while (size := len(page.encode())) > MAX_BYTES and kept:
        kept = min(kept - 1, kept * MAX_BYTES // size)
        page = _page(document, parts[:kept], _ROWS[-1], left_out=len(parts) - kept)
    return page


def _page(document: Document, parts: Sequence[Part], rows: int, left_out: int) -> str:
    shown = [cut(part, rows) for part in parts]
    return fill(
        "document.html.j2",
        title=clean(document.headline, 600),
        source=(document.verb,),
        version=__version__,
        schema="",
        scripts=_SCRIPTS,
        parts=[(type(part).__name__, part) for part in shown],
        left_out=left_out,
    )


def cut(part: Part, rows: int) -> Part:
    """A table's first rows, their texts safe to show."""
    return replace(part, table=_safe(part.table.head(rows))) if isinstance(part, Grid) else part


def _safe(table: Table) -> Table:
    columns = tuple(replace(one, label=clean(one.note or one.label), note="") for one in table.columns)
    return replace(table, columns=columns, rows=tuple(tuple(map(_safe_cell, row)) for row in table.rows))


def _safe_cell(cell: Cell) -> Cell:
    return replace(cell, text=clean(cell.text, _LONGEST_CELL))
