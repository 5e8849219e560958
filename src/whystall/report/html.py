"""The report as one self-contained HTML page: no remote address, at most 1 MB, readable without JavaScript."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.report import overview
from whystall.report.findings import findings_view, gain_words
from whystall.report.page import BUDGETS, Budget, page
from whystall.report.registry import Options, TimelineLinks
from whystall.report.schema import Report
from whystall.report.sections.registry import SECTIONS
from whystall.report.sections.section import Section
from whystall.report.shell import MAX_BYTES, fill

_SCRIPTS = ("theme.js", "tables.js", "copying.js", "timeline.js", "icicle.js")


def render_html(report: Report, options: Options | None = None) -> str:
    """The page of a report: same report, same bytes; rows that do not fit are counted, not dropped in silence."""
    sections = (*SECTIONS, *(options.more_sections if options else ()))
    timelines = options.timelines if options else None
    document = ""
    for budget in BUDGETS:
        document = _render(report, budget, sections, timelines)
        if len(document.encode()) <= MAX_BYTES:
            break
    return document


def _render(report: Report, budget: Budget, sections: Sequence[Section], timelines: TimelineLinks | None) -> str:
    return fill(
        "page.html.j2",
        title=overview.summary(report),
        source=overview.source_line(report),
        version=report.whystall,
        schema=report.schema,
        scripts=_SCRIPTS,
        report=report,
        page=page(report, budget, sections),
        action=overview.action(report),
        basis=overview.basis(report),
        losses=overview.losses(report, limit=min(budget.rows, 20)),
        efficiency=overview.efficiency_line(report),
        findings=findings_view(report, max(budget.rows // 4, 3)),
        gain=gain_words(report.verdict.gain) if report.verdict.gain else None,
        timelines=timelines,
    )
