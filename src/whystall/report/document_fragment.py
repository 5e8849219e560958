"""A verb's result as a fragment of HTML for a notebook's cell: styled inline, without scripts, names escaped."""

from __future__ import annotations

from markupsafe import Markup

from whystall.report.document import Code, Document, Drawing, Grid, Heading, Lines, Link, Part, Points
from whystall.report.document_page import cut
from whystall.report.names import clean
from whystall.report.notebook import table_fragment

_ROWS = 20
_LONGEST = 600
_PRE = Markup('<pre style="margin:0 0 6px;overflow-x:auto">{}</pre>')
_LINE = Markup('<p style="margin:2px 0">{}</p>')
_HEADLINE = Markup('<p style="font-size:1.15em;margin:0 0 6px"><strong>{}</strong></p>')


def as_fragment(document: Document) -> str:
    """The document for a cell; drawings are a page's."""
    parts = [_part(cut(part, _ROWS)) for part in document.parts if part != document.headline]
    headline = _HEADLINE.format(clean(document.headline, _LONGEST))
    return str(Markup('<div style="max-width:64rem">{}</div>').format(Markup("").join([headline, *parts])))


def as_text_fragment(text: str) -> str:
    """A text that is laid out for a terminal, for a cell."""
    return str(_PRE.format(text))


def _part(part: Part) -> Markup:
    match part:
        case str():
            return _LINE.format(clean(part, _LONGEST))
        case Heading(title):
            return Markup('<p style="margin:10px 0 2px"><strong>{}</strong></p>').format(title)
        case Lines(lines) | Points(lines):
            return Markup("").join(_LINE.format(clean(line, _LONGEST)) for line in lines)
        case Code(title, lines):
            return _LINE.format(title) + _PRE.format("\n".join(clean(line, _LONGEST) for line in lines))
        case Grid(table, notes):
            return table_fragment(table) + Markup("").join(_LINE.format(clean(note, _LONGEST)) for note in notes)
        case Drawing() | Link():
            return Markup("")
