"""A report as a fragment of HTML for a notebook's cell: verdict, one step's bar, the devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup, escape

from whystall.report import overview
from whystall.report.ranks import device_title
from whystall.report.registry import Options
from whystall.report.schema import Report
from whystall.report.sections.registry import SECTIONS
from whystall.report.tables import Cell, Limits, Table

_LONGEST_NAME = 60
_CELL = "text-align:left;padding:2px 12px 2px 0"
_NUMBER = "text-align:right;padding:2px 12px 2px 0;font-variant-numeric:tabular-nums"


def render_fragment(report: Report, _options: Options | None = None) -> str:
    """The fragment: styled inline, without scripts, names escaped."""
    return str(Markup("").join(_parts(report)))


def _parts(report: Report) -> Iterator[Markup]:
    yield Markup(
        '<div style="max-width:64rem"><p style="font-size:1.15em;margin:0 0 6px"><strong>{}</strong></p>'
    ).format(overview.summary(report))
    for said in filter(None, (overview.action(report), overview.basis(report))):
        yield Markup('<p style="margin:0 0 6px">{}</p>').format(said)
    top = overview.headline(report)
    if top:
        facts = filter(None, (device_title(top.device), top.window, overview.efficiency_line(report)))
        yield Markup('<p style="margin:0 0 6px;opacity:.75">{}</p>').format(" · ".join(facts))
        yield _bar(top)
        yield _legend(top)
        for other in overview.bars_beside(top.device):
            yield Markup('<p style="margin:0 0 6px;opacity:.75">{}</p>').format(other.window)
            yield _bar(other)
            yield _legend(other)
    for section in SECTIONS:
        if section.notebook:
            yield table_fragment(section.build(report, Limits(rows=section.notebook.rows, name=_LONGEST_NAME)))
    yield Markup("").join(
        Markup('<p style="margin:2px 0">! {}</p>').format(line) for line in overview.losses(report, limit=5)
    )
    yield Markup("</div>")


def _bar(bar: overview.Bar) -> Markup:
    told = ", ".join(f"{segment.part.label} {segment.percent}" for segment in bar.segments)
    rects = Markup("").join(
        Markup('<rect x="{:.4f}%" width="{:.4f}%" height="100%" fill="{}"><title>{}: {}</title></rect>').format(
            segment.start, segment.width, segment.part.colour, segment.part.label, segment.percent
        )
        for segment in bar.segments
    )
    return Markup('<svg role="img" aria-label="{}" width="100%" height="28" style="display:block">{}</svg>').format(
        told, rects
    )


def _legend(bar: overview.Bar) -> Markup:
    keys = Markup(" ").join(
        Markup(
            '<span style="display:inline-block;margin-right:14px"><span style="display:inline-block;width:10px;'
            'height:10px;background:{};margin-right:5px"></span>{} {}</span>'
        ).format(segment.part.colour, segment.part.label, segment.percent)
        for segment in bar.segments
    )
    return Markup('<p style="margin:6px 0 10px">{}</p>').format(keys)


def table_fragment(table: Table) -> Markup:
    """A table, styled inline."""
    if not table:
        return Markup("")
    head = Markup("").join(
        Markup('<th scope="col" style="{}">{}</th>').format(_style(column.kind), column.label)
        for column in table.columns
    )
    kinds = [column.kind for column in table.columns]
    body = Markup("").join(Markup("<tr>{}</tr>").format(_row(row, kinds)) for row in table.rows)
    more = Markup("<p>{:,} more</p>").format(table.omitted) if table.omitted else Markup("")
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>{}").format(head, body, more)


def _row(row: tuple[Cell, ...], kinds: Sequence[str]) -> Markup:
    return Markup("").join(
        Markup('<td style="{}">{}</td>').format(_style(kind), escape(cell.text))
        for cell, kind in zip(row, kinds, strict=True)
    )


def _style(kind: str) -> str:
    return _NUMBER if kind == "number" else _CELL
